#include "cleave/verify/numbers.h"

#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"

namespace cleave::verifying {
namespace {

Tensor uniform(at::IntArrayRef shape, uint64_t seed, const std::string& stream) {
  Tensor out = at::empty(shape, at::kFloat);
  fill_uniform(stream_key(seed, "verify " + stream), 0, 0,
               {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())});
  return out;
}

}  // namespace

Tensor noise(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, const std::string& stream) {
  return uniform(shape, seed, stream).to(type).sub_(0.5).mul_(std::sqrt(12.0));
}

Tensor noise_ids(at::IntArrayRef shape, int64_t limit, uint64_t seed, const std::string& stream) {
  const Tensor places = uniform(shape, seed, stream).to(at::kDouble);
  return places.mul(static_cast<double>(limit)).floor().to(at::kLong).clamp_(0, limit - 1);
}

Tensor rounded(const Tensor& t, double size, uint64_t seed, const std::string& stream) {
  return t * noise(t.sizes(), t.scalar_type(), seed, stream).mul_(size).add_(1);
}

WeightsGuard::WeightsGuard(const std::vector<std::shared_ptr<Parameter>>& parameters)
    : parameters_(parameters) {
  for (const auto& p : parameters_) values_.push_back(p->leaf().detach().clone());
}

WeightsGuard::~WeightsGuard() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values_.size(); ++i) parameters_[i]->leaf().detach().copy_(values_[i]);
}

}  // namespace cleave::verifying
