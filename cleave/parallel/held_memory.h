#pragma once
#include <array>
#include <cstdint>

#include "cleave/optim/optimizer.h"
#include "cleave/parallel/config.h"
#include "cleave/report/step_events.h"

namespace cleave::inline parallel {

/// Bytes of tensors by kind, in the order of kMemoryKinds.
using KindBytes = std::array<int64_t, kMemoryKinds.size()>;

/// Indices of KindBytes.
enum KindIndex : size_t { kWeightBytes, kMomentBytes, kGradientBytes, kGatheredBytes, kRestBytes };

/// Bytes of the tensors that a rank's parameters and their optimizer (null: none) hold now; the
/// rest is 0.
KindBytes held_bytes(const Parameters& parameters, const Optimizer* optimizer,
                     DataSharding sharding);

}  // namespace cleave::inline parallel
