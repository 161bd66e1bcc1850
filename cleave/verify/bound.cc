#include "cleave/verify/bound.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::verifying {
namespace {

constexpr double kLambda = 8;  // a probability of 3e-14 per number

/// The largest number of operations in series that round to the type, forward and backward, in a
/// layer that calls no other. Attention has the most: rope 3, scale, scores, mask, softmax,
/// dropout and sum, and their gradients.
constexpr double kMostOperations = 18;

double epsilon(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kBFloat16) return 0x1p-7;
  return type == at::kHalf ? 0x1p-10 : 0x1p-23;
}

bool accumulates_in_fp32(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

/// The rounding error of sums in `type`, relative to the size of their terms, for lambda = 1.
double relative_error(at::ScalarType type, const Sums& sums) {
  if (!accumulates_in_fp32(type)) {
    return std::sqrt(static_cast<double>(sums.terms) + kMostOperations) * epsilon(type);
  }
  const double terms = std::sqrt(static_cast<double>(sums.terms));
  const double roundings = std::sqrt(kMostOperations + sums.ranks);
  return roundings * epsilon(type) / 2 + terms * epsilon(at::kFloat);
}

double largest(const Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

/// The larger number; NaN if one of them is.
double larger(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace

Bounds::Bounds(const std::vector<Quantity>& values, at::ScalarType type, Sums sums)
    : values_(values), type_(type), sums_(sums) {
  for (Quantity& q : values_) {
    q.local = q.local.detach().clone();
    scales_.push_back(largest(q.local));
  }
  errors_.resize(values_.size());
}

double Bounds::size(at::ScalarType type) {
  return type == at::kDouble ? std::sqrt(epsilon(type)) : epsilon(type);
}

void Bounds::observe(const std::vector<Quantity>& perturbed) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const double change = largest(perturbed[i].local - values_[i].local);
    scales_[i] = larger(scales_[i], change / size(type_));
  }
}

void Bounds::observe_one_rank(const std::vector<Quantity>& rounded) {
  for (size_t i = 0; i < values_.size(); ++i) {
    errors_[i] = larger(errors_[i], largest(rounded[i].local.to(at::kDouble) - values_[i].local));
  }
}

std::vector<Wanted> Bounds::wanted() const {
  std::vector<Wanted> out;
  for (size_t i = 0; i < values_.size(); ++i) {
    // Errors of the sharded run, of one rank in fp64, and of the sum of squares that both make in
    // fp64.
    const double sharded = relative_error(type_, sums_);
    const double one_rank = relative_error(at::kDouble, sums_);
    const double norm = std::sqrt(static_cast<double>(values_[i].terms)) * epsilon(at::kDouble);
    const double factor = kLambda * (sharded + one_rank + 2 * norm);
    const std::string what =
        Comparison{.of = values_[i].of, .subject = values_[i].subject}.quantity();
    CLEAVE_CHECK(std::isfinite(scales_[i]), Code::kNumerics, what,
                 " is not finite on one rank; verify needs a model with finite values");
    CLEAVE_CHECK(std::isfinite(errors_[i]), Code::kUsage, what, " overflows ",
                 name(dtype_of(type_)), " on one rank; choose another --dtype");
    out.push_back({.of = values_[i].of,
                   .subject = values_[i].subject,
                   .value = values_[i].local,
                   .bound = at::scalar_tensor(std::max(factor * scales_[i], kLambda * errors_[i]),
                                              at::kDouble)});
  }
  return out;
}

Wanted wanted_step(const Quantity& weight, const Wanted& gradient, double rate, double eps,
                   at::ScalarType type) {
  const Tensor size = gradient.value.to(at::kDouble).abs();
  const double bound = gradient.bound.item<double>();
  const Tensor moved = (size - bound).clamp_min(0).add(eps).reciprocal().mul(bound).clamp_max(2);
  const double rounding = 4 * epsilon(type);
  const Tensor value = weight.local.detach().clone();
  return {.of = weight.of,
          .subject = weight.subject,
          .value = value,
          .bound = moved.mul(rate).add(value.to(at::kDouble).abs().add(rate).mul(rounding))};
}

}  // namespace cleave::verifying
