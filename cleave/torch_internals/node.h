#pragma once
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace cleave::inline torch_internals {

using at::Tensor;
using torch::autograd::variable_list;

/// Computes the gradients of a node's inputs from the gradients of its outputs, in order. Runs
/// without grad mode, so its result has no gradient: a backward with create_graph throws
/// Error(kUsage). UnusedOutputs says what the gradients of unused outputs are.
using Backward = std::function<variable_list(variable_list&&)>;

/// The gradients that a Backward gets for outputs that nothing uses. Zeros let every rank reach
/// every collective.
enum class UnusedOutputs : uint8_t { kZeros, kUndefined };

/// Whether a result computed from `t` must be connected to the autograd graph.
bool needs_grad(const Tensor& t);

/// `t` without its history; itself if it needs no gradient, which saves an operation.
inline Tensor without_history(const Tensor& t) {
  return t.requires_grad() ? t.detach() : t;
}

/// A tensor that a backward function reads again.
class SavedInput {
 public:
  /// `op`, a string literal, is named in errors.
  SavedInput(const char* op, const Tensor& t);
  /// Throws Error(kUsage) if the elements were changed in place since, as libtorch's own operations
  /// do: the gradients would be wrong. Also if their memory was freed.
  [[nodiscard]] const Tensor& get() const;

 private:
  const char* op_;
  Tensor tensor_;
  uint32_t version_;
};

/// Connects `outputs`, new tensors computed without grad, to `inputs` in the autograd graph.
/// Profilers show `name`, a string literal.
void connect(const char* name, const variable_list& inputs, const variable_list& outputs,
             Backward backward, UnusedOutputs unused = UnusedOutputs::kZeros);

/// y = forward(x) with a custom backward: dx = backward(dy). `backward` must not modify dy in
/// place; autograd owns it.
Tensor differentiable(const char* name, const Tensor& x,
                      const std::function<Tensor(const Tensor&)>& forward,
                      std::function<Tensor(const Tensor&)> backward);

/// y = f(inputs) without saved activations: backward runs f again on the same inputs and
/// differentiates that (activation checkpointing). f must depend only on its inputs and on
/// parameters. Gradients of parameters accumulate as usual.
Tensor recomputed(const char* name, const variable_list& inputs,
                  std::function<Tensor(const variable_list&)> f);

}  // namespace cleave::inline torch_internals
