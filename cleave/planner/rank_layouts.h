#pragma once
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/planner/forecast.h"
#include "cleave/planner/machine.h"

namespace cleave::inline planner {

/// A layout that was considered.
struct LayoutCandidate {
  ParallelConfig layout;
  Forecast forecast;
  StepTime time;
  bool fits = false;    ///< within the memory limit
  std::string refused;  ///< why it cannot run; empty if it can
};

/// All layouts of a model over `num_ranks` ranks: tp x pp x dp, with and without sequence
/// parallelism, with each DataSharding. First those that fit `limit` bytes a rank, the fastest
/// first; then those that do not fit, the smallest first; then those refused. If
/// step.micro_batch_size is 0, each layout has its default. `common` has the type of forward and
/// the adapters of all layouts.
std::vector<LayoutCandidate> rank_layouts(const Json& config, int num_ranks, const StepShape& step,
                                          const ParallelConfig& common, const Machine& machine,
                                          int64_t limit);

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

}  // namespace cleave::inline planner
