#pragma once
#include <functional>
#include <vector>

#include "cleave/verify/quantity.h"

namespace cleave::verifying {

/// Bounds for what rounding can do to values, from how they respond to rounding that is put in.
///
/// Two layouts add up the same terms in another order. A sum of K terms, each rounded by a relative
/// u, is off by at most lambda sqrt(K) u times the size of the terms, but for a chance of
/// 2 exp(-lambda^2 / 2) (Source: Higham and Mary, "A new approach to probabilistic rounding error
/// analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4). The size of the terms is measured:
/// input, weights and each Layer's output and gradient are changed by a relative `size` of random
/// sign, and a value's largest change, over `size`, is what its terms add up to without cancelling.
/// Both sides have that error.
class Bounds {
 public:
  /// `terms`: the longest sum behind the values.
  Bounds(const std::vector<Quantity>& values, at::ScalarType type, int64_t terms);

  /// How much is put in: the root of the type's epsilon, far from its rounding and from 1.
  [[nodiscard]] static double size(at::ScalarType type);
  /// Adds what the same values are with rounding put in.
  void observe(const std::vector<Quantity>& perturbed);
  /// The values with their bounds.
  [[nodiscard]] std::vector<Wanted> wanted() const;

 private:
  std::vector<Quantity> values_;
  std::vector<double> scales_;
  at::ScalarType type_;
  int64_t terms_;
};

/// Bound of a weight after a first AdamW step from the bound of its gradient g: the update is
/// rate g / (|g| + eps), so it moves by at most 2 rate, and by bound / (|g| + eps) where |g| is far
/// from 0.
Wanted wanted_step(const Quantity& weight, const Wanted& gradient, double rate, double eps);

}  // namespace cleave::verifying
