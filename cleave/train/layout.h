#pragma once
#include <string>

#include "cleave/parallel/plan.h"
#include "cleave/pipeline/schedule.h"

namespace cleave {

/// How leaves, gradients and moments lie over the data-parallel axis.
enum class DataSharding : uint8_t { kNone, kZero1, kFsdp };

/// What is computed again in backward instead of kept: nothing, whole blocks, or attention's scores
/// and probabilities.
enum class RecomputeKind : uint8_t { kNone, kFull, kSelective };

/// How a model is spread over ranks.
struct TrainLayout {
  int pp = 1, dp = 1, tp = 1;  ///< sizes of the mesh's axes, outermost first
  int stages_per_rank = 1;     ///< virtual pipeline
  ScheduleKind schedule = ScheduleKind::k1F1B;
  Plan plan{};                     ///< of tensor parallelism
  bool sequence_parallel = false;  ///< the plan cuts sequences between split parts
  DataSharding sharding = DataSharding::kNone;
  RecomputeKind recompute = RecomputeKind::kNone;
  at::ScalarType compute_type = at::kFloat;  ///< of forward and backward

  [[nodiscard]] int num_ranks() const { return pp * dp * tp; }
  /// "tp=2 x pp=2 x dp=1, sequence parallel, ZeRO-1"; axes of size 1 but tp and dp are left out.
  [[nodiscard]] std::string describe() const;
};

}  // namespace cleave
