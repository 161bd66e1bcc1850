#pragma once
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// A matrix [out, in] quantized to int8 with one scale per output: element (n, k) is
/// value(n, k) * scales[n].
struct Int8Matrix {
  Tensor values;  ///< int8, -127 to 127, in panels (see Int8Job::weight)
  Tensor scales;  ///< [out rounded up to 16] fp32
  Tensor sums;    ///< [out rounded up to 16] int32, sum of each output's values
  int64_t in = 0, out = 0;
};

/// Largest magnitude of each row of a matrix or of activations [.., in]; result [rows] fp32.
Tensor largest_of_rows(const Tensor& rows);

/// Quantizes weight [out, in] of any floating-point type, rounding to nearest. `largest` [out] is
/// the magnitude that 127 represents in each row; if `weight` has only a part of each row, it must
/// be that of the whole row. If it is not finite, the row's products are not finite either. Throws
/// Error(kShape) for too many inputs.
Int8Matrix to_int8(const Tensor& weight, const Tensor& largest);

/// x weight^T + bias. Each row of x is quantized to int8 too, by its largest magnitude. Products
/// and sums are exact integers, the same on every CPU.
///
///   x [.., in] fp32   bias [out] fp32 or empty   result [.., out] fp32
///
/// If x has only a part of each row, `largest` [rows of x] fp32 must be the largest magnitudes of
/// the whole rows. Not differentiable.
Tensor int8_linear(const Tensor& x, const Int8Matrix& weight, const std::optional<Tensor>& bias,
                   const Tensor& largest = {});

}  // namespace cleave::inline kernels
