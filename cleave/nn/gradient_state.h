#pragma once
#include <memory>

#include "cleave/nn/parameter.h"

/// Records over which ranks the gradients of a step are summed already. All code that sums
/// gradients (GradientSync, finish_gradients, sum_gradients, FSDP, PipelineModel) records it here,
/// skips sums that are done, and refuses gradients that changed since. The record is on the
/// gradient tensor, so zero_grad() clears it. An internal header: models and training loops do not
/// need it.
namespace cleave::inline nn {

/// Whether both axes have the same ranks: two meshes may each have an axis over them.
bool has_same_ranks(const Axis& a, const Axis& b);

/// Records that the gradient of `p` is summed over `axis`.
void record_sum(const Parameter& p, const Axis& axis);
/// Whether the gradient of `p` is summed over `axis`: the sum was recorded, the axis has one rank,
/// or the leaf is sharded over it and gets only sums. Throws Error(kUsage) if the gradient changed
/// since it was recorded: a backward added one rank's part to the sum of all.
bool is_summed(const Parameter& p, const Axis& axis);

/// Whether anything is recorded for the gradient: it was summed over some ranks.
bool has_record(const Parameter& p);

/// Records that the gradient of `p` is the mean over all data-parallel ranks: it must not be
/// divided by their number again.
void record_mean(const Parameter& p);
/// Whether record_mean() was called for the gradient.
bool is_mean(const Parameter& p);
/// Throws Error(kUsage) if a gradient of an earlier step is left: the next backward would add to
/// it.
void check_no_stale_gradients(const Parameters& parameters);
/// Records that a backward ran after the gradient of `p` was completed, and what it computed is not
/// in it. (A backward that adds to a completed gradient records that by itself.)
void record_late_backward(const Parameter& p);
/// Updates the record of a gradient that the caller scaled in place.
void record_scaled(const Parameter& p);

/// Records, on the leaf, that the model's parameters are distributed over the pipeline axis
/// `stages`. `is_tied`: another stage computes a part of this parameter's gradient.
void record_stages(const Parameter& p, const Axis& stages, bool is_tied);
/// The recorded pipeline axis; an axis of one rank if none was recorded.
Axis stages_of(const Parameter& p);
/// Records that the stages that share `p` have summed its gradient.
void record_tied_sum(const Parameter& p);
/// Whether record_tied_sum() was called for the gradient.
bool is_tied_sum(const Parameter& p);

/// Records, on the leaf if it has memory, that a GradientSync completes the gradient of `p` over
/// the axis `data`. Lasts as long as `data` exists.
void record_sync(const Parameter& p, const std::shared_ptr<const Axis>& data);

/// Throws Error(kUsage), naming the missing call, unless the gradient of `p` is complete over
/// tensor-parallel ranks, over the ranks that its leaf is sharded over, over the stages that share
/// it, and over the data-parallel ranks of its GradientSync. Without a GradientSync a parameter
/// does not know the ranks that have a plain copy of it. Also if a backward ran since the gradient
/// was completed.
void check_complete(const Parameter& p);

}  // namespace cleave::inline nn
