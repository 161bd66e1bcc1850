#pragma once
#include <vector>

#include "cleave/mesh/dry_axis.h"
#include "cleave/optim/optimizer.h"
#include "cleave/planner/layout.h"

namespace cleave {

/// The work of a step.
struct StepShape {
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 8;  ///< of a data-parallel rank, in sequences
  int64_t seq_len = 256;         ///< tokens
  OptimizerOptions optimizer{};
};

/// Bytes of a rank's tensors, by kind. Their sum is the most that there are at once.
struct MemoryForecast {
  int64_t weights = 0;      ///< leaves, and copies that forward reads
  int64_t optimizer = 0;    ///< moments
  int64_t gradients = 0;    ///< after the last backward
  int64_t activations = 0;  ///< everything else at the worst moment
  [[nodiscard]] int64_t total() const { return weights + optimizer + gradients + activations; }
};

/// What one rank has and sends in a step: the first of tp and dp at its place on pp.
struct RankForecast {
  MemoryForecast memory;
  DryTraffic tp, dp, pp;  ///< of one step
};

/// A step of a layout before it is run.
struct Forecast {
  std::vector<RankForecast> ranks;  ///< by place on pp
  double flops = 0;                 ///< of all ranks, without what is computed again
  double idle_share = 0;            ///< of the ranks' time, waiting for the pipeline
  int64_t tokens = 0;               ///< of the global batch

  /// Of the rank that needs most.
  [[nodiscard]] int64_t most_bytes() const;
};

/// Runs one step of every pipeline rank on the meta device: the program itself, with its layers,
/// plans and wraps, on tensors that have shapes alone. Works for any registered model. Takes
/// milliseconds and no memory. Throws Error(kShape) for a layout that does not fit the model.
///
/// Not in it: what libraries keep beside tensors (packed matrices, buffers of threads), messages
/// under way, the program itself.
Forecast forecast(const Json& config, const TrainLayout& layout, const StepShape& step);

}  // namespace cleave
