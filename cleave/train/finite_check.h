#pragma once
#include <cstdint>

#include "cleave/train/rank_model.h"
#include "cleave/train/resume.h"

namespace cleave::inline train {

/// Throws Error(kNumerics) if the loss or the gradient norm of a step, counted from 0, is not
/// finite. The error names a weight or gradient that is not finite, by the rank that holds it.
/// Collective over `everyone`, the axis of all ranks.
void check_finite(const RankModel& rank, const Axis& everyone, int64_t step, double loss,
                  const GradientNorm& norm);

/// Throws an error if the weights of a run are those of its start: Error(kNumerics) if all steps
/// have overflowed fp16, Error(kFormat) if no batch had labels.
void check_any_update(const RunState& state, RankModel& rank);

}  // namespace cleave::inline train
