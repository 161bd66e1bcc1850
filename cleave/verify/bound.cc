#include "cleave/verify/bound.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/base/error.h"

namespace cleave::verifying {
namespace {

constexpr double kLambda = 8;  // a chance of 3e-14 a number

double epsilon(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

double largest(const Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

}  // namespace

Bounds::Bounds(const std::vector<Quantity>& values, at::ScalarType type, int64_t terms)
    : values_(values), type_(type), terms_(terms) {
  for (Quantity& q : values_) {
    q.local = q.local.detach().clone();
    scales_.push_back(largest(q.local));
  }
}

double Bounds::size(at::ScalarType type) {
  return std::sqrt(epsilon(type));
}

void Bounds::observe(const std::vector<Quantity>& perturbed) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const double change = largest(perturbed[i].local - values_[i].local);
    scales_[i] = std::max(scales_[i], change / size(type_));
  }
}

std::vector<Wanted> Bounds::wanted() const {
  std::vector<Wanted> out;
  for (size_t i = 0; i < values_.size(); ++i) {
    const double sums = std::sqrt(static_cast<double>(terms_)) * epsilon(type_);
    const double norm = std::sqrt(static_cast<double>(values_[i].terms)) * epsilon(at::kDouble);
    const double factor = 2 * kLambda * (sums + norm);
    CLEAVE_CHECK(std::isfinite(scales_[i]), Code::kNumerics,
                 Comparison{.of = values_[i].of, .subject = values_[i].subject}.quantity(),
                 " is not finite on one rank already; there is nothing to compare with");
    out.push_back({.of = values_[i].of,
                   .subject = values_[i].subject,
                   .value = values_[i].local,
                   .bound = at::scalar_tensor(factor * scales_[i], at::kDouble)});
  }
  return out;
}

Wanted wanted_step(const Quantity& weight, const Wanted& gradient, double rate, double eps) {
  const Tensor size = gradient.value.to(at::kDouble).abs();
  const double bound = gradient.bound.item<double>();
  const Tensor moved = (size - bound).clamp_min(0).add(eps).reciprocal().mul(bound).clamp_max(2);
  const double rounding = 4 * epsilon(weight.local.scalar_type());
  const Tensor value = weight.local.detach().clone();
  return {.of = weight.of,
          .subject = weight.subject,
          .value = value,
          .bound = moved.mul(rate).add(value.to(at::kDouble).abs().add(rate).mul(rounding))};
}

}  // namespace cleave::verifying
