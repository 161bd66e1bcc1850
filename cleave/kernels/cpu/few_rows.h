#pragma once
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// Whether few_rows_linear takes these: up to 8 rows (decoding's: such products are bound by
/// reading the weights once) and a matrix on the processor, both
/// fp32 or both bf16, the matrix contiguous.
bool takes_few_rows(const Tensor& x, const Tensor& weight);

/// x weight^T + bias, summed in fp32. Not differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or nothing   result [.., out] of x's type
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

}  // namespace cleave
