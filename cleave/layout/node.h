#pragma once
#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace cleave {

using at::Tensor;
using torch::autograd::variable_list;

/// From the gradients of a node's outputs to those of its inputs, in their orders. Runs without
/// grad mode; no gradient it gets is undefined (an unused branch gives zeros, so that every rank
/// reaches every collective).
using Backward = std::function<variable_list(variable_list&&)>;

/// Whether a result of `t` must be connected to the graph.
bool needs_grad(const Tensor& t);

/// Connects `outputs`, fresh tensors computed without grad, to `inputs` in autograd's graph.
/// `name` (a literal) is what profilers show.
void connect(const char* name, const variable_list& inputs, const variable_list& outputs,
             Backward backward);

/// y = forward(x) with the given backward: dx = backward(dy). The incoming gradient belongs to
/// autograd and must not be changed in place.
Tensor differentiable(const char* name, const Tensor& x,
                      const std::function<Tensor(const Tensor&)>& forward,
                      std::function<Tensor(const Tensor&)> backward);

/// y = f(inputs), keeping nothing of what f computes on the way: backward runs f again, on inputs
/// with the same values, and goes through that. f must be a function of its inputs and of
/// parameters alone; gradients of parameters collect as in any backward.
Tensor recomputed(const char* name, const variable_list& inputs,
                  std::function<Tensor(const variable_list&)> f);

}  // namespace cleave
