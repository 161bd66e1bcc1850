#pragma once
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// A matrix [out, in] in panels (panels.h), of fp32 or of bf16 in pairs of neighbouring inputs. The
/// last panel may have 16, 32 or 48 outputs.
struct PanelMatrix {
  Tensor words;  ///< [out * in] fp32 or [out * in / 2] int32
  int64_t in = 0, out = 0;
};

/// Whether a matrix [out, in] can be stored in panels: fp32, or bf16 with even `in` if the CPU has
/// AVX-512 BF16; `out` must be a multiple of 16.
bool takes_panels(const Tensor& weight);

/// Copies weight [out, in] of any strides, for which takes_panels is true, into panels.
PanelMatrix to_panels(const Tensor& weight);

/// x weight^T + bias, summed in fp32; for bf16 as in multiply_pairs.
///
///   x [.., in]   bias [out] or empty   result [.., out], all of the matrix's type
///
/// Not differentiable.
Tensor panels_linear(const Tensor& x, const PanelMatrix& weight, const std::optional<Tensor>& bias);

}  // namespace cleave::inline kernels
