#pragma once
#include <ATen/core/Tensor.h>

namespace cleave::inline nn {

using at::Tensor;

/// cap tanh(x / cap), element-wise: about x where it is small, and below `cap` in magnitude.
/// Differentiable; saves only the result. `cap` is positive. Source: Gemma 2, arXiv:2408.00118,
/// section 2.
Tensor soft_cap(const Tensor& x, double cap);

}  // namespace cleave::inline nn
