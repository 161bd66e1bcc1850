#pragma once
#include <optional>
#include <string>

#include "cleave/model/model.h"
#include "cleave/parallel/config.h"
#include "cleave/planner/lora_flags.h"
#include "cleave/planner/options.h"

namespace cleave::inline planner {

/// The configuration that flags give. `world_size` is that of a launcher, 0 without one. The plan
/// is the model's or the file's. Throws Error(kUsage) for flags that exclude each other,
/// Error(kShape) for sizes that do not fit the world.
ParallelConfig make_parallel_config(const LayoutOptions& options, const Model& model,
                                    at::ScalarType compute_type, int world_size);

/// The type of --reduce-dtype; nothing without it. Throws Error(kUsage) for a type that it does not
/// take.
std::optional<at::ScalarType> reduce_type_of(const LayoutOptions& options);

/// The adapters that flags ask for; none without --lora. Throws Error(kUsage) for the other flags
/// of adapters without it.
std::optional<LoraOptions> lora_from(const LoraFlags& flags);

/// A warning if the ranks of a tp axis are on several hosts, each with `ranks_of_host` ranks: every
/// layer's sums would cross the network. Otherwise empty.
std::string cross_host_warning(const ParallelConfig& layout, int ranks_of_host);

/// The default micro-batch size of a data-parallel rank: all of its sequences; with a pipeline, so
/// many that there are four micro-batches per pipeline rank.
int64_t default_micro_batch_size(int64_t batch_size, const ParallelConfig& layout);

/// The coordinates of a rank in the mesh pp x dp x tp, whose last axis is contiguous.
struct RankPlace {
  int pp = 0, dp = 0, tp = 0;
};

/// The place of rank `rank` of a layout, in [0, layout.num_ranks()).
RankPlace place_of(int rank, const ParallelConfig& layout);

/// Axes without peers for the rank at `place`.
ParallelAxes dry_axes(const ParallelConfig& layout, const RankPlace& place = {});

/// Parallelizes `model` on dry axes, to check that it is possible. Throws as parallelize() does.
void try_layout(Model& model, const ParallelConfig& layout);

}  // namespace cleave::inline planner
