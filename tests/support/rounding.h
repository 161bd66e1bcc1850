#pragma once
#include <algorithm>
#include <string>

#include <c10/core/ScalarType.h>

namespace cleave::test {

/// Largest relative error of storing a number in a type.
inline double unit_roundoff(at::ScalarType type) {
  if (type == at::kBFloat16) return 0x1p-8;
  if (type == at::kHalf) return 0x1p-11;
  return type == at::kDouble ? 0x1p-53 : 0x1p-24;
}

/// The name of a tensor with its block number replaced by '*'.
inline std::string kind_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }, '*');
  return name;
}

/// Bound on the difference between a parallel run with Cleave's kernels and one rank with
/// libtorch's.
///
/// `error` is the distance of the one rank from fp64, the largest of a tensor's elements: the
/// effect of the type's rounding on this value. A parallel run rounds the same values in another
/// order, and sums over ranks add one rounding per rank: its distance from fp64 is another random
/// sample of the same size. About 1e5 numbers are compared, so the largest is expected at sqrt(2 ln
/// 1e5) = 4.8 times the root mean square of a sample (Gaussian tails); `error`, the largest of
/// several samples, is at least that root mean square. The one rank may differ by `error` in the
/// other direction: 5 + 1 in total. `stored` is the rounding error of the largest element, for
/// values where `error` is 0 by chance.
inline double rounding_bound(double error, double stored) {
  constexpr double kFactor = 6;
  return kFactor * (error + stored);
}

/// The same for the Euclidean norm of a tensor's difference. In the worst case the whole error of a
/// tensor has one cause, so its norm is as uncertain as one number: Gaussian with deviation s.
/// About 1e4 norms are compared, so the largest is expected at sqrt(2 ln 1e4) s = 4.3 s, and
/// `error`, the largest of six draws (two blocks, three steps), at 1.6 s. The one rank lies up to
/// `error` away on the other side: (4.3 + 1.6) / 1.6 = 3.7.
inline double norm_rounding_bound(double error, double stored) {
  constexpr double kFactor = 4;
  return kFactor * (error + stored);
}

}  // namespace cleave::test
