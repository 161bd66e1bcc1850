#pragma once
#include "cleave/base/range.h"
#include "cleave/base/resource_limits.h"
#include "cleave/train/setup.h"

namespace cleave {

/// The ranks of a job that share this host's memory: all rank threads, or as many as the launcher
/// started here.
Range ranks_of_host(const ParallelConfig& layout);

/// Throws Error(kMemory) if `setup.planned`, the forecast of `step`, exceeds the available memory
/// of `ranks` by more than a forecast may be wrong (10 %), so that a run that fits is never
/// refused. The error names the options that fit, if there are any.
void require_memory(const TrainSetup& setup, const StepShape& step, Range ranks,
                    const AvailableMemory& available);

}  // namespace cleave
