#pragma once
#include <string>

#include "cleave/parallel/gradients.h"

/// How far the gradients of a step are: over which ranks they are summed. Whatever sums gradients
/// (finish_gradients, sum_gradients, DataParallel, FSDP, PipelineModel) records it here, skips what
/// is done already, and refuses what was changed since. The record is kept on the gradient tensor,
/// so zero_grad() clears it. Only the functions of this folder and of pipeline/ need this header.
namespace cleave {

/// Whether both axes have the same ranks: two meshes may each have an axis over them.
bool has_same_ranks(const Axis& a, const Axis& b);

/// Records that the gradient of `p` is summed over `axis`.
void record_sum(const Parameter& p, const Axis& axis);
/// Whether the gradient of `p` is summed over `axis`: recorded, or its sharded leaf gets only such
/// gradients, or the axis has one rank. Throws Error(kUsage) when the gradient was changed since it
/// was recorded: a backward added one rank's part to the sum of all.
bool is_summed(const Parameter& p, const Axis& axis);

/// Whether anything is recorded of the gradient: something has completed it, wholly or in part.
bool has_record(const Parameter& p);

/// Records that the gradient of `p` is that of a mean over all data-parallel ranks, so that nothing
/// may be divided by their number again.
void record_mean(const Parameter& p);
/// Whether that was recorded.
bool is_mean(const Parameter& p);
/// Throws Error(kUsage) where a gradient of an earlier step is left, which the next backward would
/// be added to.
void check_none_left(const Parameters& parameters);
/// Renews the record of a gradient that the caller scaled in place.
void record_scaled(const Parameter& p);

/// Records, on the leaf, that the parameters of this model are distributed over the pipeline stages
/// of `stages`; `is_tied`: another stage computes a part of this one's gradient.
void record_stages(const Parameter& p, const Axis& stages, bool is_tied);
/// The axis that was recorded; one rank where none was.
Axis stages_of(const Parameter& p);
/// Records that the parts of the stages that share `p` are summed, and whether that was recorded.
void record_tied_sum(const Parameter& p);
bool is_tied_sum(const Parameter& p);

/// Throws Error(kUsage), naming the call that is missing, unless the gradient of `p` is complete
/// as far as its parameter can know: over tensor-parallel ranks, over the ranks that its leaf is
/// sharded over, and over the stages that share it. Whether replicas are summed over a plain
/// data-parallel axis is not known to a parameter.
void check_complete(const Parameter& p);

}  // namespace cleave
