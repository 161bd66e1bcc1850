#pragma once
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// Gradients of weights that backward has put off: who needs the gradient of an input soon, and
/// those of weights only at the end of the step, computes the latter when there is time.
class DeferredGradients {
 public:
  /// Whether a gradient can go from `weight` to its leaf by itself and later: it is a leaf, or a
  /// cast or transpose of one. What FSDP gathers is reduced with its whole group, once.
  static bool takes(const Tensor& weight);

  /// To be called by a node's backward in place of computing the gradient of `weight`: a leaf, or
  /// a tensor made of one (a cast), through which the gradient then flows on.
  void add(const Tensor& weight, std::function<Tensor()> gradient) {
    waiting_.emplace_back(weight, std::move(gradient));
  }
  /// Computes all of them, in the order in which they were put off, and adds them to the leaves.
  void run();

 private:
  std::vector<std::pair<Tensor, std::function<Tensor()>>> waiting_;
};

}  // namespace cleave
