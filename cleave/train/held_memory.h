#pragma once
#include <array>
#include <cstdint>

#include "cleave/report/step_events.h"
#include "cleave/train/rank_model.h"

namespace cleave::inline train {

/// Bytes of tensors by kind, in the order of kMemoryKinds.
using KindBytes = std::array<int64_t, kMemoryKinds.size()>;

/// Indices of KindBytes.
enum KindIndex : size_t { kWeightBytes, kMomentBytes, kGradientBytes, kGatheredBytes, kRestBytes };

/// Bytes of the tensors that a rank's parameters and optimizer hold now; the rest is 0.
KindBytes held_bytes(RankModel& rank, DataSharding sharding);

}  // namespace cleave::inline train
