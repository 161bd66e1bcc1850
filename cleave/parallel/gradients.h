#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/nn/parameter.h"

namespace cleave {

/// The parameters of a model, each once.
using Parameters = std::vector<std::shared_ptr<Parameter>>;

/// After backward: makes every gradient defined, then complete over the tensor-parallel axis. Sums,
/// in one bucket, what autograd left as parts: replicated parameters used in split work, and shards
/// that several ranks hold. No other gradient changes.
void finish_gradients(const Parameters& parameters, const Axis& tp);

/// Sums gradients over a data-parallel axis, in buckets. The loss was divided by the global count
/// of labels already, so the sum is the mean's gradient.
void sum_gradients(const Parameters& parameters, const Axis& dp);

/// L2 norm of all gradients over the axis, every element counted once, accumulated in fp64. The
/// same bits on every rank of the axis. Also says, on every rank alike, which parameter is first
/// not finite: its name, or "".
struct GradientNorm {
  double value = 0;
  std::string not_finite;
};
GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp);

/// Multiplies gradients by max_norm / (norm + 1e-6) where that is below 1.
void clip_gradients(const Parameters& parameters, double norm, double max_norm);

}  // namespace cleave
