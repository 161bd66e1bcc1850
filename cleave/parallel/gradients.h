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

/// After a step's last backward: makes every gradient defined, then complete over the
/// tensor-parallel axis. Sums, in one bucket, what autograd left as parts: replicated parameters
/// used in split work, and shards that several ranks hold. No other gradient changes.
///
/// What is complete already (a second call in a step; FSDP, ZeRO-1 and NxDPPModel reduce
/// themselves) is not summed again. Error(kUsage) when a backward ran after the gradients were
/// complete, or before the Zero1Optimizer reduced them. Parameters of other pipeline stages are
/// skipped. All this holds for sum_gradients and average_gradients too.
void finish_gradients(const Parameters& parameters, const Axis& tp);

/// Sums gradients over a data-parallel axis, in buckets. The loss was divided by the global count
/// of labels already, so the sum is the mean's gradient.
void sum_gradients(const Parameters& parameters, const Axis& dp);

/// Makes gradients those of the mean over data-parallel ranks, where each rank's loss is that of
/// its own rows: finish_gradients, sum_gradients, then a division by the number of ranks. Gradients
/// that are such a mean already (of NxDPPModel::run_train) stay as they are.
void average_gradients(const Parameters& parameters, const Axis& tp, const Axis& dp);

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
/// tensor parallelism, with ZeRO-1 or FSDP that of the ranks over which leaves are sharded, and
/// that of the pipeline whose run_train made the gradients. Every rank of the axes calls it with
/// the same ones, each pipeline stage with its own.
///
/// Error(kUsage), naming the missing call, where a gradient is still in parts: over tp, over the
/// stages that share the parameter, or not reduced by ZeRO-1 yet.
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
