#pragma once
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline torch_internals {

using at::Tensor;

// Products by oneDNN of fp32 CPU tensors that are not empty, without a backward. at::linear would
// call MKL. libtorch has oneDNN's products only as operators without a C++ function.

/// a b^T + bias; a [.., k], b [n, k], result [.., n]. Transposed views are not copied.
Tensor onednn_linear(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias);

/// a b^T + added; added [.., n].
Tensor onednn_linear_add(const Tensor& a, const Tensor& b, const Tensor& added);

}  // namespace cleave::inline torch_internals
