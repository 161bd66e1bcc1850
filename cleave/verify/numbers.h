#pragma once
#include <string>

#include <ATen/core/Tensor.h>

#include "cleave/nn/parameter.h"

namespace cleave::verifying {

/// Uniform random numbers of mean 0 and variance 1: a pure function of shape, seed and stream.
Tensor noise(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, const std::string& stream);

/// Random ids in [0, limit), in the same way.
Tensor noise_ids(at::IntArrayRef shape, int64_t limit, uint64_t seed, const std::string& stream);

/// t * (1 + size * noise): simulates rounding by the relative `size`.
Tensor rounded(const Tensor& t, double size, uint64_t seed, const std::string& stream);

/// Restores weights when destroyed.
class WeightsGuard {
 public:
  explicit WeightsGuard(const std::vector<std::shared_ptr<Parameter>>& parameters);
  ~WeightsGuard();
  WeightsGuard(const WeightsGuard&) = delete;
  WeightsGuard& operator=(const WeightsGuard&) = delete;

 private:
  std::vector<std::shared_ptr<Parameter>> parameters_;
  std::vector<Tensor> values_;
};

}  // namespace cleave::verifying
