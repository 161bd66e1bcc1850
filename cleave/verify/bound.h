#pragma once
#include <functional>
#include <vector>

#include "cleave/verify/quantity.h"

namespace cleave::verifying {

/// The longest sums that some values are computed from.
struct Sums {
  int64_t terms = 1;  ///< in the sum of one rank
  int ranks = 1;      ///< whose partial sums are added
};

/// Bounds of the rounding errors of values, from their response to injected rounding.
///
/// A sum of K terms, each rounded by a relative u, is off by at most lambda sqrt(K) u times the
/// size of the terms, except with a probability of 2 exp(-lambda^2 / 2) (Source: Higham and Mary,
/// "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019,
/// theorem 2.4). The size of the terms is measured in fp64: input, weights and each layer's output
/// and gradient are changed by a relative `size` of random sign. A value's largest change divided
/// by `size` is the sum of its terms without cancellation.
///
/// Terms that cancel inside one operation do not show so: backward of softmax gives zero where a
/// query sees one key, whatever its input, and rounds numbers as large as the gradient of the
/// probabilities. So the errors of one rank that computes in the type, with libtorch's operations
/// and several choices of last bits, count too, lambda times.
///
/// fp32 and fp64 round each term of a sum and each operation in series. bf16 and fp16 sums are
/// accumulated in fp32: operations in series round to the type once each, and a sum over ranks once
/// per rank.
class Bounds {
 public:
  /// `type` is that of the sharded run; the values are those of one rank in fp64.
  Bounds(const std::vector<Quantity>& values, at::ScalarType type, Sums sums);

  /// The relative size of injected rounding: the type's epsilon, so that the response is that to
  /// rounding even where larger changes would give very different values. In fp64, in which the
  /// response is computed, the square root.
  [[nodiscard]] static double size(at::ScalarType type);
  /// Adds the response: the same values, computed with injected rounding.
  void observe(const std::vector<Quantity>& perturbed);
  /// Adds the error of one rank: the same values, computed in the type with libtorch's operations.
  void observe_one_rank(const std::vector<Quantity>& rounded);
  /// The values with their bounds. Throws Error(kNumerics) for a value that is not finite in fp64,
  /// Error(kUsage) for one that the type cannot hold on one rank.
  [[nodiscard]] std::vector<Wanted> wanted() const;

 private:
  std::vector<Quantity> values_;
  std::vector<double> scales_, errors_;
  at::ScalarType type_;
  Sums sums_;
};

/// The bound of a weight after the first AdamW step, from the bound of its gradient g. The update
/// is rate g / (|g| + eps), so it can change by at most 2 rate, and by rate bound / (|g| + eps)
/// where |g| is much larger than the bound. `type` is that of the master weights, fp32 or fp64.
Wanted wanted_step(const Quantity& weight, const Wanted& gradient, double rate, double eps,
                   at::ScalarType type);

}  // namespace cleave::verifying
