#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/comm/shm/shared_segment.h"

namespace cleave {

/// Serializes the public state of a rank: its slot with the last operations, its stamps in the
/// given groups (indices in the segment), and the ring ends that it moves.
///
/// The snapshot is consistent with the rank's waits: if it shows the rank waiting, all its other
/// values are from that wait.
std::vector<std::byte> take_snapshot(const SharedSegment& segment, int rank,
                                     std::span<const uint32_t> groups);

/// Applies a snapshot of another rank to `segment`, the replica of rank `self`. Skips the stamps
/// and rings that the two ranks share, because these arrive with the data. Throws Error(kFormat) if
/// the bytes are not a valid snapshot or name a group that `segment` does not have.
void apply_snapshot(SharedSegment& segment, int self, int rank, std::span<const std::byte> bytes);

}  // namespace cleave
