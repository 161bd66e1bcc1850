#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cleave/comm/shm/shared_segment.h"

namespace cleave {

/// What a rank waits for.
struct WaitTarget {
  WaitKind kind = WaitKind::kGroup;
  uint32_t group = 0;  ///< index in the shared segment
  uint32_t stamp =
      0;          ///< that all members must reach; for messages: the ring end that must advance
  int peer = -1;  ///< world rank, for messages
};

/// The world ranks that `rank` still waits for; empty once the wait is satisfied.
std::vector<int> missing_ranks(const SharedSegment& segment, int rank, const WaitTarget& awaited);

/// A rank's current wait and its epoch; nullopt if it does not wait. A rank with several threads
/// may wait in one and work in another (RankSlot::uses_many_threads).
std::optional<std::pair<WaitTarget, uint32_t>> wait_of(const SharedSegment& segment, int rank);

}  // namespace cleave
