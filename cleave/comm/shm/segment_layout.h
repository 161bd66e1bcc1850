#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cleave {

// What lies in the shared segment. The segment is private memory when the ranks are threads and a memfd when
// they are processes of one host; nothing in it is a pointer that another process could follow,
// except DirectSpan, which only rank threads read. When ranks are on several hosts each has a copy
// of its own, which TcpReplicator keeps like the others: everything in it is written by one rank.
//
//   JobHeader | RankSlot[ranks] | GroupEntry[groups] | channel offsets [ranks][ranks] | arena
//
// Groups' member slots and message channels are taken from the arena and never given back.

/// What a rank does with others; stored in headers and the flight log.
enum class Op : uint8_t {
  kNone,
  kBarrier,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
};

/// Sizes of a shared segment, fixed by its version: a segment of another version is refused.
inline constexpr uint32_t kLayoutVersion = 3;
inline constexpr uint64_t kJobMagic = 0x636c656176650000U + kLayoutVersion;
inline constexpr int kMaxRanks = 512;         // per shared segment
inline constexpr int kNumGroupsPerRank = 64;  // groups that the segment has room for
inline constexpr int kFlightLogLength = 256;  // operations remembered per rank
inline constexpr int kSiteBytes = 88;         // of a call site's text
inline constexpr int kNumShownSizes = 8;      // dims and widths kept for messages
inline constexpr int kMaxProcessors = 1024;   // that a rank can say it runs on
inline constexpr int kAbortTextBytes = 1024;
inline constexpr int kGroupNameBytes = 40;
inline constexpr uint32_t kNumChunks = 4;          // messages from one rank to another
inline constexpr uint64_t kChunkBytes = 32 << 10;  // of a message, in one chunk

// Job segments begin as zeros of the system and are never constructed.
// NOLINTBEGIN(cppcoreguidelines-pro-type-member-init, clang-analyzer-optin.performance.Padding)

/// How far the first failure is written.
enum class AbortState : uint32_t { kNone, kWriting, kSet };

/// The first failure of the job. Written once, by whoever moves `state` away from kNone.
struct AbortRecord {
  alignas(64) std::atomic<AbortState> state;
  int32_t rank;  // who failed
  int32_t code;  // of Error
  int64_t step;  // where that rank was, -1 when it never said
  uint64_t sequence;
  Op op;
  char group[kGroupNameBytes];
  char text[kAbortTextBytes];
};

/// Begins every shared segment.
struct JobHeader {
  uint64_t magic;
  uint64_t bytes;  // of the whole segment
  int32_t num_ranks;
  int32_t num_groups;
  int64_t mirror_of;  // whose copy of the segment this is; -1 when all ranks share it
  uint64_t groups_offset, channels_offset;
  uint64_t arena_end;
  uint64_t payload_bytes;  // of one member's one buffer, where the arena has room
  alignas(64) std::atomic<uint64_t> arena_next;
  AbortRecord abort;
  std::atomic<uint32_t> hint_state;  // 1 once resume_hint is there
  char resume_hint[kAbortTextBytes];
};

/// One operation of one rank. Words, so that others may read while the rank writes: they then see a
/// mixture, which a log may show, but no undefined behaviour.
struct FlightEntry {
  std::atomic<uint64_t> kind;  // op, reduce op, dtype, done (8 bits each), group index (32 bits)
  std::atomic<uint64_t> sequence, count, begin_ns, end_ns;
  std::atomic<uint64_t> site[kSiteBytes / 8];
};
static_assert(sizeof(FlightEntry) == 128);

/// kLeft: nothing more will come; kUnwound: it left by an exception.
enum class RankState : uint32_t { kAbsent, kJoined, kLeft, kUnwound };
/// What a rank waits in.
enum class WaitKind : uint32_t { kNone, kGroup, kSend, kRecv };

/// What others may know of one rank.
struct RankSlot {
  alignas(64) std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int64_t> step;
  std::atomic<uint64_t> num_operations;                   // written to the flight log so far
  std::atomic<uint64_t> processors[kMaxProcessors / 64];  // that it may run on, as it joined; bits
  // The wait that this rank is in: odd epochs are waits. Peers find circles of waits by it.
  alignas(64) std::atomic<uint32_t> wait_epoch;
  std::atomic<WaitKind> wait_kind;
  std::atomic<uint32_t> wait_group;         // index of the group
  std::atomic<uint32_t> wait_stamp;         // that members must reach
  std::atomic<int32_t> wait_peer;           // of a message
  std::atomic<uint64_t> user_thread;        // the thread that communicates
  std::atomic<uint32_t> uses_many_threads;  // then a wait does not stop the whole rank
  FlightEntry log[kFlightLogLength];
};

/// One group of ranks. Claimed by the first member to come, through `key`.
struct GroupEntry {
  alignas(64) std::atomic<uint64_t> key;  // hash of the ranks and their number of groups; 0 is free
  std::atomic<uint32_t> is_ready;
  int32_t num_members;
  uint64_t ranks_offset;    // int32_t[num_members]
  uint64_t members_offset;  // MemberSlot[num_members]
  uint64_t payload_offset;  // [num_members][2][payload_bytes]
  uint64_t payload_bytes;
  char name[kGroupNameBytes];
};

/// What a rank says about one operation. Peers compare its digest before they touch data.
struct CallHeader {
  uint32_t magic;  // version of the protocol
  uint32_t group;
  uint64_t sequence;
  uint64_t count;  // elements; rows where there are widths
  uint64_t shape_hash;
  uint64_t widths_hash;
  uint64_t site_hash;
  int32_t root;
  Op op;
  uint8_t reduce_op;
  uint8_t dtype;
  uint8_t num_dims;
  uint32_t num_widths;
  uint32_t on_device;  // 1 when the data lies on the ranks' devices
};
static_assert(sizeof(CallHeader) == 64);

/// For messages only.
struct CallNote {
  int64_t dims[kNumShownSizes];
  int64_t widths[kNumShownSizes];
  char site[kSiteBytes];
};

/// Memory of a rank thread that its peers read or write in place.
struct DirectSpan {
  const void* in;
  void* out;
};

/// One member's side of one group. `stamp` counts what it has posted; posting n+2 means that all
/// have posted n+1 and so have read n: two copies of everything are enough.
struct MemberSlot {
  // All that peers read of a call that agrees is in one cache line.
  alignas(64) std::atomic<uint32_t> stamp;
  std::atomic<uint32_t> num_sleepers;
  uint64_t digest[2];  // of the header
  DirectSpan direct[2];
  // Of this member alone, until one leaves by an exception.
  alignas(64) std::atomic<uint32_t> is_touching;  // reads or writes memory of its peers just now
  alignas(64) CallHeader header[2];
  CallNote note[2];
};

/// The two ends of the ring of messages from one rank to another: one sender moves `head`, one
/// receiver `tail`. Zero-filled memory is an empty ring.
struct ChannelEnds {
  alignas(64) std::atomic<uint32_t> head;
  std::atomic<uint32_t> num_waiting_receivers;
  alignas(64) std::atomic<uint32_t> tail;
  std::atomic<uint32_t> num_waiting_senders;
};

/// A piece of a message.
struct MessageChunk {
  CallHeader header;  // of the whole message
  CallNote note;
  uint64_t message_bytes;
  uint64_t bytes;  // in this chunk
  std::byte data[kChunkBytes];
};

/// The messages on their way from one rank to another.
struct MessageRing : ChannelEnds {
  alignas(64) MessageChunk chunks[kNumChunks];
};

// NOLINTEND(cppcoreguidelines-pro-type-member-init, clang-analyzer-optin.performance.Padding)

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace cleave
