#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/comm/shm/segment_layout.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

// The wire format between two ranks: a Frame, then a body of frame.bytes bytes. Both ends are the
// same build and have the same byte order, which rendezvous has checked.

/// The kinds of frames, and their bodies.
enum class FrameKind : uint32_t {
  kGroup = 1,  ///< the sender has joined the group `key`. Body: GroupBody, then its ranks
  kPost,   ///< header and note of the sender's post `number` to `key`. Body: payload from `offset`
  kChunk,  ///< chunk `number` of a message of `offset` bytes in total. Body: its data
  kAck,    ///< the sender has read all chunks before `number`
  kSnapshotRequest,  ///< asks for a snapshot in reply to request `number`
  kSnapshot,         ///< the sender's state after request `number`. Body: of take_snapshot()
  kAbort,            ///< the first failure of the job. Body: AbortBody
  kClose,            ///< the sender's last frame
};

/// The fixed header of every frame.
struct Frame {
  FrameKind kind;
  uint32_t bytes;  ///< size of the body
  uint64_t key;    ///< of a group
  uint64_t offset;
  uint32_t number;
  uint32_t unused;
  CallHeader header;
  CallNote note;
};
static_assert(sizeof(Frame) == 32 + sizeof(CallHeader) + sizeof(CallNote));

/// The body of a kGroup frame, followed by int32_t[num_ranks].
struct GroupBody {
  char name[kGroupNameBytes];
  int32_t num_ranks;
};

/// The body of a kAbort frame.
struct AbortBody {
  int64_t step;
  uint64_t sequence;
  int32_t rank, code;
  Op op;
  char group[kGroupNameBytes];
  char text[kAbortTextBytes];
};

/// Largest body of a frame other than kPost and kChunk.
inline constexpr uint32_t kMaxBodyBytes = 64 << 10;

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

}  // namespace cleave::inline comm
