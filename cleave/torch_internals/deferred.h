#pragma once
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cleave::inline torch_internals {

using at::Tensor;

/// Weight gradients deferred past input gradients, as in zero-bubble pipeline schedules: backward
/// computes only input gradients, and run() computes the weight gradients later in the step.
class DeferredGradients {
 public:
  /// Whether the gradient of `weight` can be deferred: `weight` is a leaf, or a cast or transpose
  /// of one. A weight gathered by FSDP cannot, since its whole group is reduced once.
  static bool takes(const Tensor& weight);

  /// A node's backward calls this instead of computing the gradient of `weight`. run() propagates
  /// the gradient through a cast or transpose to the leaf.
  void add(const Tensor& weight, std::function<Tensor()> gradient) {
    waiting_.emplace_back(weight, std::move(gradient));
  }
  /// Computes all deferred gradients in the order of add() and adds them to the leaves.
  void run();

 private:
  std::vector<std::pair<Tensor, std::function<Tensor()>>> waiting_;
};

}  // namespace cleave::inline torch_internals
