#pragma once
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// A matrix [out, in] of bf16 in panels (panels.h) of the pairs of neighbouring inputs; the last
/// panel may have 16, 32 or 48 outputs.
struct Bf16Panels {
  Tensor pairs;     ///< [out * in / 2] int32
  int64_t in = 0;   ///< even
  int64_t out = 0;  ///< a multiple of 16
};

/// Whether a matrix [out, in] has this form and the processor multiplies it (AVX-512 BF16).
bool takes_panels(const Tensor& weight);

/// weight [out, in], which takes_panels takes, of any strides.
Bf16Panels to_panels(const Tensor& weight);

/// x weight^T + bias, summed in fp32 as bf16_rows_range sums.
///
///   x [.., in] bf16   bias [out] bf16 or nothing   result [.., out] bf16
///
/// Not differentiable.
Tensor panels_linear(const Tensor& x, const Bf16Panels& weight, const std::optional<Tensor>& bias);

}  // namespace cleave
