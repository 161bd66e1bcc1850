#pragma once
#include <string>
#include <vector>

#include "cleave/planner/machine.h"

namespace cleave {

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

}  // namespace cleave
