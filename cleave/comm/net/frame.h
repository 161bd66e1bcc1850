#pragma once
#include <cstdint>

#include "cleave/comm/shm/segment_layout.h"

namespace cleave {

// What one rank tells another one over the network: a Frame, then frame.bytes more. Both ends are
// the same build on machines of one byte order, which their greeting has made sure of.

/// What a frame tells, and what follows it.
enum class FrameKind : uint32_t {
  kGroup = 1,  ///< the sender has joined the group `key`: GroupTail, then its ranks
  kPost,   ///< header and note of the sender's post `number` to `key`: payload bytes from `offset`
  kChunk,  ///< chunk `number` of a message with `offset` bytes: its data
  kTake,   ///< the sender has read all chunks before `number`
  kAsk,    ///< question `number`, for which the answer is a snapshot
  kSnapshot,  ///< where the sender is, said after its question `number`: see rank_snapshot.h
  kAbort,     ///< the first failure of the job: AbortTail
  kBye,       ///< nothing more comes
};

/// The fixed part of everything that travels.
struct Frame {
  FrameKind kind;
  uint32_t bytes;  ///< that follow
  uint64_t key;    ///< of a group
  uint64_t offset;
  uint32_t number;
  uint32_t unused;
  CallHeader header;
  CallNote note;
};
static_assert(sizeof(Frame) == 32 + sizeof(CallHeader) + sizeof(CallNote));

/// What follows a kGroup frame, before int32_t[num_ranks].
struct GroupTail {
  char name[kGroupNameBytes];
  int32_t num_ranks;
};

/// What follows a kAbort frame.
struct AbortTail {
  int64_t step;
  uint64_t sequence;
  int32_t rank, code;
  Op op;
  char group[kGroupNameBytes];
  char text[kAbortTextBytes];
};

/// The most bytes that follow a frame which is no payload and no chunk.
inline constexpr uint32_t kMaxTailBytes = 64 << 10;

}  // namespace cleave
