#pragma once
#include <string>

#include <ATen/core/Tensor.h>

#include "cleave/nn/parameter.h"

namespace cleave::verifying {

/// Uniform numbers of mean 0 and variance 1: a function of shape, seed and stream alone.
Tensor noise(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, const std::string& stream);

/// Ids in [0, limit), from the same.
Tensor noise_ids(at::IntArrayRef shape, int64_t limit, uint64_t seed, const std::string& stream);

/// t * (1 + size * noise): what rounding of that size does to it.
Tensor rounded(const Tensor& t, double size, uint64_t seed, const std::string& stream);

/// Puts weights back when it goes.
class KeptWeights {
 public:
  explicit KeptWeights(const std::vector<std::shared_ptr<Parameter>>& parameters);
  ~KeptWeights();
  KeptWeights(const KeptWeights&) = delete;
  KeptWeights& operator=(const KeptWeights&) = delete;

 private:
  std::vector<std::shared_ptr<Parameter>> parameters_;
  std::vector<Tensor> values_;
};

}  // namespace cleave::verifying
