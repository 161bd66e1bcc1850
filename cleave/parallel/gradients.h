#pragma once
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "cleave/nn/parameter.h"

namespace cleave::inline parallel {

/// Sums partial gradients over the tensor-parallel axis, in one bucket and in place. gradients[i]
/// has the local shape of parameters[i].
void complete_over_tp(const Parameters& parameters, std::vector<Tensor>& gradients, const Axis& tp);

/// Makes every gradient defined and complete over the tensor-parallel axis. Call it after a step's
/// last backward. Sums partial gradients in one bucket: of replicated parameters used in split
/// work, and of shards that several ranks hold. No other gradient changes. A GradientSync does this
/// and sums over the other axes too (parallel/gradient_sync.h).
///
/// Gradients that are complete already are not summed again (a second call in a step; FSDP,
/// GradientSync and NxDPPModel sum by themselves). Error(kUsage) if a backward ran after the
/// gradients were complete, or if the Zero1Optimizer has not reduced them yet. Parameters of other
/// pipeline stages are skipped, and frozen ones get no gradient. All this holds for sum_gradients
/// and average_gradients too.
void finish_gradients(const Parameters& parameters, const Axis& tp);

/// Sums gradients over a data-parallel axis, in buckets. The loss is divided by the global number
/// of labels, so the sum is the gradient of the global mean. Error(kUsage) for experts that are
/// shared out over ranks; a GradientSync sums these.
void sum_gradients(const Parameters& parameters, const Axis& dp);

/// Averages gradients over data-parallel ranks, whose losses are of their own sequences only:
/// finish_gradients, sum_gradients, then a division by the number of ranks. Gradients that are such
/// a mean already (of NxDPPModel::run_train) do not change.
void average_gradients(const Parameters& parameters, const Axis& tp, const Axis& dp);

/// The norm of all gradients, in fp64. The same on every rank.
struct GradientNorm {
  double value = 0;
  std::string not_finite;  ///< the first parameter whose gradient is not finite, or ""
};
/// The L2 norm of all gradients over the axis, another p-norm (power > 0), or the largest absolute
/// value (power = infinity). Every element counts once, also of replicated and tied parameters and
/// of copied KV heads. Undefined gradients count as zeros, as do parameters without memory on this
/// rank (of another pipeline stage). The same bits on every rank of the axis. Throws Error(kUsage),
/// naming the missing call, if a gradient is still partial, like clip_grad_norm, for experts that
/// are shared out over ranks, and for an axis without all ranks of a pipeline, of tensor
/// parallelism, or over which ZeRO-1 or FSDP shards leaves.
GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, double power = 2);

/// The same with experts that are shared out over the axis `ep`: other parameters are the same on
/// its ranks and count once. If `tp` has all ranks, over which leaves are sharded (ZeRO-1, FSDP),
/// `ep` is the default axis.
GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, const Axis& ep);

/// The factor by which clipping scales gradients: max_norm / (norm + 1e-6), at most 1.
double clip_factor(double norm, double max_norm);
/// Multiplies gradients by clip_factor(norm, max_norm). Throws Error(kUsage) like gradient_norm.
void clip_gradients(const Parameters& parameters, double norm, double max_norm);

/// clip_grad_norm() for a list.
GradientNorm clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type,
                               bool error_if_nonfinite);

/// Scales complete gradients (GradientSync::complete) so that their norm is at most
/// max_norm, and returns the norm before scaling: PyTorch's clip_grad_norm_ for parameters on any
/// layout. `parameters` is any range of shared_ptr<Parameter>. The axes are those of the
/// parameters: tensor parallelism, with ZeRO-1 or FSDP the ranks over which leaves are sharded, and
/// the pipeline whose run_train made the gradients. Every rank of these axes must call it with the
/// same parameters, each pipeline stage with its own.
///
/// Error(kUsage) for experts that are shared out over ranks, which need gradient_norm() with ep.
/// Error(kUsage) if none of the parameters has memory on this rank: a pipeline stage without
/// trained parameters must give its frozen ones, which know the pipeline too. Error(kUsage), naming
/// the missing call, if a gradient is still partial: over tp, over the stages that share the
/// parameter, or over the data-parallel ranks of a GradientSync or ZeRO-1.
///
/// If a gradient is not finite, nothing is scaled and the result names the parameter; with
/// error_if_nonfinite that is Error(kNumerics). Error(kUsage) for a negative max_norm or a
/// norm_type that is not above 0.
template <std::ranges::input_range Range>
GradientNorm clip_grad_norm(Range&& parameters, double max_norm, double norm_type = 2,
                            bool error_if_nonfinite = false) {
  Parameters list;
  for (auto&& p : parameters) list.push_back(p);
  return clip_grad_norm_of(list, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace cleave::inline parallel
