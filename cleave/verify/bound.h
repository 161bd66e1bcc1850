#pragma once
#include <functional>
#include <vector>

#include "cleave/verify/quantity.h"

namespace cleave::verifying {

/// The longest sums behind some values.
struct Sums {
  int64_t terms = 1;  ///< of one rank's sum
  int ranks = 1;      ///< whose parts are added
};

/// Bounds for what rounding can do to values, from how they respond to injected rounding.
///
/// A sum of K terms, each rounded by a relative u, is off by at most lambda sqrt(K) u times the
/// size of the terms, but for a chance of 2 exp(-lambda^2 / 2) (Source: Higham and Mary, "A new
/// approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4).
/// The size of the terms is measured in fp64: input, weights and each Layer's output and gradient
/// are changed by a relative `size` of random sign, and a value's largest change, over `size`, is
/// what its terms add up to without cancelling.
///
/// fp32 and fp64 round each term of a sum. bf16 and fp16 sums are accumulated in fp32: a chain of
/// operations rounds to the type once an operation, and a sum over ranks once a rank.
class Bounds {
 public:
  /// `type`: of the split run; the values are one rank's in fp64.
  Bounds(const std::vector<Quantity>& values, at::ScalarType type, Sums sums);

  /// How much is injected: the root of the type's epsilon, more than its rounding and less than 1.
  [[nodiscard]] static double size(at::ScalarType type);
  /// Adds the same values with rounding injected.
  void observe(const std::vector<Quantity>& perturbed);
  /// The values with their bounds.
  [[nodiscard]] std::vector<Wanted> wanted() const;

 private:
  std::vector<Quantity> values_;
  std::vector<double> scales_;
  at::ScalarType type_;
  Sums sums_;
};

/// Bound of a weight after a first AdamW step from the bound of its gradient g: the update is
/// rate g / (|g| + eps), so it moves by at most 2 rate, and by bound / (|g| + eps) where |g| is far
/// from 0. `type` is the master's, fp32 or fp64.
Wanted wanted_step(const Quantity& weight, const Wanted& gradient, double rate, double eps,
                   at::ScalarType type);

}  // namespace cleave::verifying
