#pragma once
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "cleave/nn/parameter.h"

namespace cleave {

/// The parameters of a model, each once.
using Parameters = std::vector<std::shared_ptr<Parameter>>;

/// Completes gradients over the tensor-parallel axis: sums, in one bucket, what autograd left as
/// parts, in place. gradients[i] has the local shape of parameters[i].
void complete_over_tp(const Parameters& parameters, std::vector<Tensor>& gradients, const Axis& tp);

/// After backward: makes every gradient defined, then complete over the tensor-parallel axis. Sums,
/// in one bucket, what autograd left as parts: replicated parameters used in split work, and shards
/// that several ranks hold. No other gradient changes.
void finish_gradients(const Parameters& parameters, const Axis& tp);

/// Sums gradients over a data-parallel axis, in buckets. The loss was divided by the global count
/// of labels already, so the sum is the mean's gradient.
void sum_gradients(const Parameters& parameters, const Axis& dp);

/// Norm of all gradients over the axis, every element counted once (replicated, tied and KV copies
/// too), in fp64: the L2 norm, another p-norm (power > 0), or the largest absolute value (power =
/// infinity). The same bits on every rank of the axis. Also says, on every rank alike, which
/// parameter is first not finite: its name, or "". An undefined gradient counts as zeros,
/// and so does a parameter that has no memory on this rank (of another pipeline stage).
struct GradientNorm {
  double value = 0;
  std::string not_finite;
};
GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, double power = 2);

/// What clipping multiplies gradients by: max_norm / (norm + 1e-6), at most 1.
double clip_factor(double norm, double max_norm);
/// Multiplies gradients by it.
void clip_gradients(const Parameters& parameters, double norm, double max_norm);

/// What clip_grad_norm does for a list.
GradientNorm clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type,
                               bool error_if_nonfinite);

/// Scales gradients, which are complete (finish_gradients, sum_gradients), so that their norm is at
/// most max_norm, and returns the norm that they had: PyTorch's clip_grad_norm_ for parameters on
/// any layout. `parameters` is any range of shared_ptr<Parameter>; the axes are theirs: that of
/// tensor parallelism and, with ZeRO-1 or FSDP, that of the ranks over which leaves are cut. Every
/// rank of the axes calls it with the same ones.
///
/// Where a gradient is not finite nothing is scaled, and the result names it; with
/// error_if_nonfinite that is Error(kNumerics). Error(kUsage) for a negative max_norm or a
/// norm_type that is not above 0.
template <std::ranges::input_range Range>
GradientNorm clip_grad_norm(Range&& parameters, double max_norm, double norm_type = 2,
                            bool error_if_nonfinite = false) {
  Parameters list;
  for (auto&& p : parameters) list.push_back(p);
  return clip_grad_norm_of(list, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace cleave
