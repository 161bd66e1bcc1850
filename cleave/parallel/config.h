#pragma once
#include <optional>
#include <string>

#include "cleave/comm/api/world.h"
#include "cleave/mesh/axis.h"
#include "cleave/nn/head_loss.h"
#include "cleave/parallel/lora.h"
#include "cleave/parallel/plan.h"
#include "cleave/pipeline/schedule.h"

namespace cleave::inline parallel {

/// What is sharded over the data-parallel axis: nothing, master weights and moments (ZeRO-1), or
/// also weights and gradients (FSDP).
enum class DataSharding : uint8_t { kNone, kZero1, kFsdp };

/// What backward recomputes instead of keeping: nothing, whole blocks, or attention's scores and
/// probabilities.
enum class RecomputeKind : uint8_t { kNone, kFull, kSelective };

/// How a model is distributed over ranks.
struct ParallelConfig {
  int pp = 1, dp = 1, tp = 1;  ///< sizes of the mesh's axes, outermost first
  int ep = 1;                  ///< data-parallel ranks that share out the experts; divides dp
  int stages_per_rank = 1;     ///< virtual pipeline
  ScheduleKind schedule = ScheduleKind::k1F1B;
  Plan plan{};                     ///< of tensor parallelism
  bool sequence_parallel = false;  ///< the plan shards sequences between split layers
  DataSharding sharding = DataSharding::kNone;
  RecomputeKind recompute = RecomputeKind::kNone;
  at::ScalarType compute_type = at::kFloat;  ///< of forward and backward
  /// The type in which gradients pass between data-parallel ranks; nullopt: leaf_type().
  std::optional<at::ScalarType> reduce_type{};
  std::optional<LoraOptions> lora{};  ///< train adapters of this kind and freeze the weights
  /// As GradientSyncOptions::bucket_bytes. It decides the shards of ZeRO-1.
  int64_t bucket_bytes = int64_t{8} << 20;
  HeadLossOptions head_loss{};

  [[nodiscard]] int num_ranks() const { return pp * dp * tp; }
  /// Type of master weights, gradients and moments.
  [[nodiscard]] at::ScalarType leaf_type() const {
    return compute_type == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// "tp=2 x pp=2 x dp=1, 1f1b, sequence parallel, ZeRO-1"; a pp of 1 is left out.
  [[nodiscard]] std::string describe() const;
};

/// The axes that a model is distributed over: those of a mesh, or dry ones for planning.
struct ParallelAxes {
  Axis pp, dp, tp;
  Axis ep{};      ///< the ranks of dp that share out the experts
  Axis copies{};  ///< the ranks of dp that have the same experts
};

/// The axes ep and copies of a rank of `dp`: blocks of `ep` neighbours share out the experts, and
/// those with the same place in their block have the same experts. Collective over dp. Throws
/// Error(kShape) if ep does not divide dp.
ParallelAxes with_experts(ParallelAxes axes, World& world, int ep);

}  // namespace cleave::inline parallel
