#pragma once
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// A matrix [out, in] of fp32, or of bf16 in pairs of neighbouring inputs, in panels (panels.h).
/// The last panel may have 16, 32 or 48 outputs.
struct PanelMatrix {
  Tensor words;  ///< [out * in] fp32 or [out * in / 2] int32
  int64_t in = 0, out = 0;
};

/// Whether a matrix [out, in] has this form: of fp32 or, where the processor multiplies pairs of
/// bf16 (AVX-512 BF16), of bf16, with out a multiple of 16.
bool takes_panels(const Tensor& weight);

/// weight [out, in], which takes_panels takes, of any strides.
PanelMatrix to_panels(const Tensor& weight);

/// x weight^T + bias, summed in fp32; of bf16 as bf16_rows_range sums.
///
///   x [.., in]   bias [out] or nothing   result [.., out], all of the matrix's type
///
/// Not differentiable.
Tensor panels_linear(const Tensor& x, const PanelMatrix& weight, const std::optional<Tensor>& bias);

}  // namespace cleave
