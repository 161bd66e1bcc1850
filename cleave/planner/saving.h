#pragma once
#include <string>

#include "cleave/base/range.h"
#include "cleave/planner/forecast.h"

namespace cleave {

/// Bytes of the tensors of ranks [begin, end) of a layout together, such as those of one host: the
/// sum of their peaks.
int64_t bytes_of_ranks(const Forecast& forecast, const ParallelConfig& layout, Range ranks);

/// Options with which a run needs less memory, on the same ranks.
struct Saving {
  std::string flags;  ///< to add to the command: "--recompute full --micro-batch-size 2"
  int64_t bytes = 0;  ///< of the ranks
};

/// The first options with which the tensors of `ranks` fit into `limit` bytes; if none do, those
/// that need the least, without flags if that is the run itself. In this order: smaller
/// micro-batches; then with dp > 1 also ZeRO-1, FSDP, or tp instead of dp; then all of these with
/// recompute full; then all of that in bf16. Of the micro-batches that fit, the largest.
Saving find_saving(const Json& config, const ParallelConfig& layout, const StepShape& step,
                   Range ranks, int64_t limit);

}  // namespace cleave
