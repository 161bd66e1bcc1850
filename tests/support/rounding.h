#pragma once
#include <c10/core/ScalarType.h>

namespace cleave::test {

/// Largest relative error of a number stored in a type.
inline double unit_roundoff(at::ScalarType type) {
  if (type == at::kBFloat16) return 0x1p-8;
  if (type == at::kHalf) return 0x1p-11;
  return type == at::kDouble ? 0x1p-53 : 0x1p-24;
}

/// How far a run that is split, with Cleave's kernels, may be from one rank without them.
///
/// `error` is the distance of that one rank from fp64, the largest of a tensor's elements: what the
/// type's rounding does to this value of this model on this data. A split run rounds the same
/// values in another order, and sums over ranks round once more a rank: its own distance from fp64
/// is another draw of the same size. About 1e5 numbers are compared, so the largest is expected at
/// sqrt(2 ln 1e5) = 4.8 times the root mean square of a draw (Gaussian tails), which `error`,
/// itself the largest of several draws, is no smaller than. The one rank lies `error` away on the
/// other side: 5 + 1 in all. `stored` is what the type cannot store of the largest element: a value
/// that one rank meets by chance has an error of 0.
inline double rounding_bound(double error, double stored) {
  constexpr double kFactor = 6;
  return kFactor * (error + stored);
}

}  // namespace cleave::test
