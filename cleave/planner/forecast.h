#pragma once
#include <map>
#include <string>
#include <vector>

#include "cleave/mesh/dry_axis.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/config.h"
#include "cleave/pipeline/schedule.h"
#include "cleave/planner/layout_options.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline planner {

/// The size of a step.
struct StepShape {
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 8;  ///< of a data-parallel rank, in sequences
  int64_t seq_len = 256;         ///< tokens
  OptimizerOptions optimizer{};
  int64_t rows_per_sample = 1;  ///< 2: both sizes count pairs of sequences
  bool is_on_gpu = false;       ///< GPUs have no attention kernel of Cleave's
  bool is_saved_async = false;  ///< a copy of what is saved is written during other steps
  [[nodiscard]] int64_t tokens() const { return batch_size * rows_per_sample * seq_len; }
};

/// Bytes of a rank's tensors at the peak, by kind.
struct MemoryForecast {
  int64_t weights = 0;      ///< leaves, and copies that forward reads
  int64_t optimizer = 0;    ///< moments
  int64_t gradients = 0;    ///< after the last backward
  int64_t activations = 0;  ///< everything else at the peak
  int64_t saved_copy = 0;   ///< of the rank's share of a checkpoint, if saves are asynchronous
  [[nodiscard]] int64_t total() const {
    return weights + optimizer + gradients + activations + saved_copy;
  }
};

/// Memory, traffic and work of one rank in a step.
struct RankForecast {
  MemoryForecast memory;
  DryTraffic tp, dp, pp;  ///< of one step; dp with the axes of experts, pp without headers
  /// By the name of the axis, then by kind: what the rank sends in one step, with the headers of
  /// messages between stages.
  std::map<std::string, DryCalls> calls{};
  /// By kind of action and stage: the mean of the micro-batches.
  std::map<std::pair<Action::Kind, int>, OpWork> actions{};
  OpWork rest{};               ///< outside of the actions and the optimizer
  double optimizer_bytes = 0;  ///< that the optimizer's step reads and writes
};

/// A parameter of a rank.
struct RankParameter {
  std::string name;
  std::vector<int64_t> shape;  ///< that forward reads on this rank
  int64_t held = 0;            ///< elements that the rank holds between steps: a shard with FSDP
};

/// What one rank of a layout runs.
struct RankProgram {
  RankPlace place;
  std::vector<std::string> layers;  ///< names of the layers of its stages
  std::vector<RankParameter> parameters;
  RankForecast forecast;
};

/// The forecast of a layout's step. There is one for each place on pp: that of the first dp rank,
/// and of the tp rank that holds the most elements.
struct Forecast {
  std::vector<RankForecast> ranks;  ///< by place on pp
  /// The same for the ranks of ep from place `first_with_fewer` on, which have one expert less;
  /// empty if there are none.
  std::vector<RankForecast> with_fewer_experts;
  int first_with_fewer = 0;
  double flops = 0;       ///< of all ranks, without recomputation
  double idle_share = 0;  ///< share of the ranks' time spent waiting for the pipeline
  int64_t tokens = 0;     ///< of the global batch
  Schedule schedule{};    ///< of the pipeline

  /// The forecast of rank `rank` of a run with this layout.
  [[nodiscard]] const RankForecast& of_rank(const ParallelConfig& layout, int64_t rank) const;
  /// Bytes of the rank that needs the most.
  [[nodiscard]] int64_t most_bytes() const;
  /// The work of all entries of `ranks`.
  [[nodiscard]] OpWork work() const;
};

/// The number of experts of each layer of a model that has some; 0 without.
int64_t experts_of(Layer& model);

/// Runs one step of every pipeline rank on the meta device: the real layers, plans and wraps, on
/// tensors that have only shapes. Works for any registered model. Takes milliseconds and no memory.
/// Throws Error(kShape) for a layout that does not fit the model.
///
/// Not counted: memory of libraries outside of tensors (packed matrices, thread buffers), messages
/// in flight, and the program itself; the matrix products of the optimizer muon.
Forecast forecast(const Json& config, const ParallelConfig& layout, const StepShape& step);

/// Runs one step of rank `rank`, in [0, layout.num_ranks()), on the meta device. Throws as
/// forecast() does.
///
/// Not counted: the few numbers that ranks exchange about losses, labels and the gradient norm, and
/// what the optimizer muon sends.
RankProgram rank_program(const Json& config, const ParallelConfig& layout, const StepShape& step,
                         int rank);

}  // namespace cleave::inline planner
