#pragma once
#include <functional>
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

/// What rank_layouts() is to try.
struct LayoutSearch {
  int num_ranks = 1;
  StepShape step{};         ///< micro_batch_size 0: each layout has its default
  ParallelConfig common{};  ///< the type of forward and the adapters of all layouts
  /// The machine, measured for the work of all layouts.
  std::function<Machine(const MeasuredRun&)> measure{};
  int64_t limit = 0;  ///< bytes of a rank
  /// Called after each layout with the number of those done and of all; on several threads, one
  /// call at a time.
  std::function<void(int64_t, int64_t)> on_progress{};
};

/// All layouts of a model over the ranks: tp x pp x dp, with and without sequence parallelism, with
/// each DataSharding; of a model with experts also every ep that divides dp and is not above their
/// number. First those that fit the limit, the fastest first; then those that do not fit, the
/// smallest first; then those refused.
std::vector<LayoutCandidate> rank_layouts(const Json& config, const LayoutSearch& search);

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
