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
    const auto terms = static_cast<double>(std::max(terms_, values_[i].terms));
    const double factor = 2 * kLambda * std::sqrt(terms) * epsilon(type_);
    CLEAVE_CHECK(std::isfinite(scales_[i]), Code::kNumerics, values_[i].name,
                 " is not finite on one rank already; there is nothing to compare with");
    out.push_back({.name = values_[i].name,
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
  return {.name = weight.name,
          .value = value,
          .bound = moved.mul(rate).add(value.to(at::kDouble).abs().add(rate).mul(rounding))};
}

}  // namespace cleave::verifying
