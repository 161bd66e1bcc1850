#pragma once
#include <string>
#include <vector>

#include "cleave/planner/machine.h"

namespace cleave {

/// A layout that was considered.
struct Candidate {
  TrainLayout layout;
  Forecast forecast;
  StepTime time;
  bool fits = false;    ///< in the limit
  std::string refused;  ///< why it cannot be run; empty: it can
};

/// All ways to spread a model over `num_ranks` ranks: tp x pp x dp, sequences cut or not, the
/// optimizer or the weights cut over dp or not. Those that fit `limit` bytes a rank come first, the
/// fastest at the front; then those that do not fit, the smallest first; then those refused.
/// `micro_batch_size` of `step` 0: the default of each.
std::vector<Candidate> rank_layouts(const Json& config, int num_ranks, const StepShape& step,
                                    at::ScalarType compute_type, const Machine& machine,
                                    int64_t limit);

}  // namespace cleave
