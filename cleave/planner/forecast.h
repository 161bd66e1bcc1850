#pragma once
#include <vector>

#include "cleave/mesh/dry_axis.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/config.h"

namespace cleave::inline planner {

/// The size of a step.
struct StepShape {
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 8;  ///< of a data-parallel rank, in sequences
  int64_t seq_len = 256;         ///< tokens
  OptimizerOptions optimizer{};
  int64_t rows_per_sample = 1;  ///< 2: both sizes count pairs of sequences
  [[nodiscard]] int64_t tokens() const { return batch_size * rows_per_sample * seq_len; }
};

/// Bytes of a rank's tensors at the peak, by kind.
struct MemoryForecast {
  int64_t weights = 0;      ///< leaves, and copies that forward reads
  int64_t optimizer = 0;    ///< moments
  int64_t gradients = 0;    ///< after the last backward
  int64_t activations = 0;  ///< everything else at the peak
  [[nodiscard]] int64_t total() const { return weights + optimizer + gradients + activations; }
};

/// Memory and traffic of one rank in a step: of the first rank of tp and dp at its place on pp.
struct RankForecast {
  MemoryForecast memory;
  DryTraffic tp, dp, pp;  ///< of one step
};

/// The forecast of a layout's step.
struct Forecast {
  std::vector<RankForecast> ranks;  ///< by place on pp
  /// The same of the ranks of ep from place `first_with_fewer` on, which have one expert less;
  /// empty if there are none.
  std::vector<RankForecast> with_fewer_experts;
  int first_with_fewer = 0;
  double flops = 0;       ///< of all ranks, without recomputation
  double idle_share = 0;  ///< share of the ranks' time spent waiting for the pipeline
  int64_t tokens = 0;     ///< of the global batch

  /// Bytes of the rank that needs the most.
  [[nodiscard]] int64_t most_bytes() const;
};

/// Runs one step of every pipeline rank on the meta device: the real layers, plans and wraps, on
/// tensors that have only shapes. Works for any registered model. Takes milliseconds and no memory.
/// Throws Error(kShape) for a layout that does not fit the model.
///
/// Not counted: memory of libraries outside of tensors (packed matrices, thread buffers), messages
/// in flight, and the program itself.
Forecast forecast(const Json& config, const ParallelConfig& layout, const StepShape& step);

}  // namespace cleave::inline planner
