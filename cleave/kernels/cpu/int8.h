#pragma once
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// A matrix [out, in] as 8-bit integers with a scale for each output: element (n, k) is value (n,
/// k) times scales[n].
struct Int8Matrix {
  Tensor values;  ///< int8, -127 to 127, in panels (Int8Job::weight)
  Tensor scales;  ///< [out rounded up to 16] fp32
  Tensor sums;    ///< [out rounded up to 16] int32, of each output's values
  int64_t in = 0, out = 0;
};

/// The largest magnitude of each row of a matrix or of activations [.., in]: [rows] fp32.
Tensor largest_of_rows(const Tensor& rows);

/// weight [out, in] of any floating type rounded to the nearest values; `largest` [out] is what 127
/// stands for in each row: of the whole row, where this is a part of it. A row where it is not
/// finite has no 8-bit form: its products are not finite either.
Int8Matrix to_int8(const Tensor& weight, const Tensor& largest);

/// x weight^T + bias. Each row of x is rounded to 8 bits too, 127 standing for its largest
/// magnitude; products and sums are exact integers, the same on every processor.
///
///   x [.., in] fp32   bias [out] fp32 or nothing   result [.., out] fp32
///
/// `largest` [rows of x] fp32 are the magnitudes where x is a part of longer rows. Not
/// differentiable.
Tensor int8_linear(const Tensor& x, const Int8Matrix& weight, const std::optional<Tensor>& bias,
                   const Tensor& largest = {});

}  // namespace cleave
