#pragma once
#include <ATen/core/Tensor.h>

namespace cleave::inline nn {

using at::Tensor;

/// x with each column multiplied by magnitude / norm, differentiable in x and the magnitudes. The
/// products are in the magnitudes' type and rounded once.
///
///   x [.., out]   magnitudes [out]   norms [out], without gradient   result [.., out] of x's type
Tensor with_magnitudes(const Tensor& x, const Tensor& magnitudes, const Tensor& norms);

/// A product scale B A of low rank, without gradients.
struct LowRankProduct {
  Tensor a;  ///< [rank, in]
  Tensor b;  ///< [out, rank]
  double scale = 1;
};

/// Sums of the squares of the rows of W + scale B A, without computing that matrix.
///
///   squares [out] are those of W   cross [rank, out] is A W^T   result [out] of squares' type
Tensor squares_of_sum(const Tensor& squares, const Tensor& cross, const LowRankProduct& low);

}  // namespace cleave::inline nn
