#pragma once
#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// A matrix kept in int8 with one scale for each index of `row_dim`, the dim of a layer's outputs:
/// element (i, j) is values(i, j) * scales(i), or scales(j) if row_dim is 1.
struct Int8Weight {
  Tensor values;  ///< [.., ..] int8, -127 to 127, contiguous
  Tensor scales;  ///< [size of row_dim] fp32
  int row_dim = 0;
};

/// The scales for rows with these largest magnitudes: 127 represents the largest. A row of zeros
/// has the scale 1.
Tensor int8_scales(const Tensor& largest);

/// round(x / scales) in int8, ties to even; `scales` is broadcast.
Tensor to_int8_values(const Tensor& x, const Tensor& scales);

/// The matrix in `type`: products in fp32, rounded once.
Tensor dequantize(const Int8Weight& weight, at::ScalarType type);

}  // namespace cleave::inline kernels
