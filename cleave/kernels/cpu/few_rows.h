#pragma once
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// Whether few_rows_linear supports these: x of 1 to 8 rows and a contiguous matrix, both fp32 or
/// both bf16 on the CPU. Such products occur in decoding and are limited by reading the weights.
bool takes_few_rows(const Tensor& x, const Tensor& weight);

/// x weight^T + bias, summed in fp32. Not differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or empty   result [.., out] of x's type
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

}  // namespace cleave
