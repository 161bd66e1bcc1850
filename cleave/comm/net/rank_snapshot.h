#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/comm/shm/shared_segment.h"

namespace cleave {

/// What others may know of a rank, as bytes: its slot with the last operations, how far it is in
/// the given groups (indices in the segment), and the ends of the rings that it moves.
///
/// Taken at one moment of the rank's waits: when it shows the rank waiting, what else it shows was
/// so during that wait.
std::vector<std::byte> take_snapshot(const SharedSegment& segment, int rank,
                                     std::span<const uint32_t> groups);

/// Brings the copy `segment` of rank `self` up to a snapshot of another rank. What the two do together
/// is left alone: it comes with the data. Throws Error(kFormat) when the bytes are no snapshot;
/// groups that `segment` does not know are errors too.
void apply_snapshot(SharedSegment& segment, int self, int rank, std::span<const std::byte> bytes);

}  // namespace cleave
