#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cleave::inline comm {

// The layout of the shared segment. The segment is private memory if the ranks are threads, and a
// memfd if they are processes of one host. It contains no pointers, except DirectSpan, which only
// rank threads read. If the ranks are on several hosts, each has its own replica of the segment,
// and TcpReplicator keeps the replicas consistent: each part is written by one rank. Ranks of one
// host then also share a segment, whose slots of other hosts' ranks stay empty.
//
//   JobHeader | RankSlot[ranks] | GroupEntry[groups] | channel offsets [ranks][ranks] | arena
//
// Member slots of groups and message channels are allocated from the arena and never freed.

/// The operation of a collective or message; stored in headers and the flight log.
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

/// Sizes of a shared segment. They belong to its version, as the algorithms of the collectives do:
/// a segment of another version is rejected.
inline constexpr uint32_t kLayoutVersion = 8;
inline constexpr uint64_t kJobMagic = 0x636c656176650000U + kLayoutVersion;
inline constexpr int kMaxRanks = 512;         // on one host
inline constexpr int kMaxJobRanks = 4096;     // on several hosts
inline constexpr int kNumGroupsPerRank = 64;  // capacity for groups, by present rank
inline constexpr int kFlightLogLength = 256;  // operations remembered per rank
inline constexpr int kSiteBytes = 88;         // of a call site's text
inline constexpr int kNumShownSizes = 8;      // dims and widths kept for messages
inline constexpr int kMaxCpus = 1024;         // that a rank can publish
inline constexpr int kAbortTextBytes = 1024;
inline constexpr int kGroupNameBytes = 40;
inline constexpr uint32_t kNumChunks = 4;          // messages from one rank to another
inline constexpr uint64_t kChunkBytes = 32 << 10;  // of a message, in one chunk

// Shared segments start as zero-filled memory; most structs in them are never constructed.
// NOLINTBEGIN(cppcoreguidelines-pro-type-member-init, clang-analyzer-optin.performance.Padding)

/// Progress of writing the first failure.
enum class AbortState : uint32_t { kNone, kWriting, kSet };

/// The first failure of the job. Written once, by the rank that changes `state` from kNone.
struct AbortRecord {
  alignas(64) std::atomic<AbortState> state;
  int32_t rank;  // that failed
  int32_t code;  // of Error
  int64_t step;  // of that rank; -1 if it never reported one
  uint64_t sequence;
  Op op;
  char group[kGroupNameBytes];
  char text[kAbortTextBytes];
};

/// The header at the start of every shared segment.
struct JobHeader {
  uint64_t magic;
  uint64_t bytes;  // of the whole segment
  int32_t num_ranks;
  int32_t num_present;  // ranks that use this segment: fewer if it is one host's of several
  int32_t num_groups;
  int64_t replica_of;  // the rank whose replica this is; -1 if all ranks share the segment
  uint64_t groups_offset, channels_offset;
  uint64_t arena_end;
  uint64_t payload_bytes;  // of one buffer of one member, if the arena has space
  alignas(64) std::atomic<uint64_t> arena_next;
  AbortRecord abort;
  std::atomic<uint32_t> hint_state;  // 1 once resume_hint is written
  char resume_hint[kAbortTextBytes];
};

/// One operation of one rank. Atomic words, so that others may read while the rank writes. They may
/// see a mixture of two operations, which is acceptable in a log, but no undefined behavior.
struct FlightEntry {
  std::atomic<uint64_t> kind;  // op, reduce op, dtype, done (8 bits each), group index (32 bits)
  std::atomic<uint64_t> sequence, count, begin_ns, end_ns;
  std::atomic<uint64_t> site[kSiteBytes / 8];
};
static_assert(sizeof(FlightEntry) == 128);

/// kLeft: the rank has ended in order. kUnwound: it has ended by an exception.
enum class RankState : uint32_t { kAbsent, kJoined, kLeft, kUnwound };
/// The kind of a rank's wait.
enum class WaitKind : uint32_t { kNone, kGroup, kSend, kRecv };

/// The public state of one rank.
struct RankSlot {
  alignas(64) std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int64_t> step;
  std::atomic<uint64_t> num_operations;       // written to the flight log so far
  std::atomic<uint64_t> cpus[kMaxCpus / 64];  // bit mask: where it may run when it joined
  // The current wait of this rank; its epoch is odd during a wait. Peers detect deadlock by it.
  alignas(64) std::atomic<uint32_t> wait_epoch;
  std::atomic<WaitKind> wait_kind;
  std::atomic<uint32_t> wait_group;         // index of the group
  std::atomic<uint32_t> wait_stamp;         // that members must reach
  std::atomic<int32_t> wait_peer;           // world rank, for messages
  std::atomic<uint64_t> user_thread;        // the thread that communicates
  std::atomic<uint32_t> uses_many_threads;  // then a wait does not stop the whole rank
  FlightEntry log[kFlightLogLength];
};

/// One group of ranks. The first member to join claims the entry by setting `key`.
struct GroupEntry {
  // Hash of the ranks, and of how many groups they have made before. 0: the entry is free.
  alignas(64) std::atomic<uint64_t> key;
  std::atomic<uint32_t> is_ready;
  int32_t num_members;
  uint64_t ranks_offset;    // int32_t[num_members]
  uint64_t members_offset;  // MemberSlot[num_members]
  uint64_t payload_offset;  // [num_members][2][payload_bytes]
  uint64_t payload_bytes;
  char name[kGroupNameBytes];
};

/// A rank's description of one operation. Peers compare its digest before they touch data.
struct CallHeader {
  uint32_t magic;  // version of the protocol
  uint32_t group;
  uint64_t sequence;
  uint64_t count;  // elements; rows if the operation has widths
  uint64_t shape_hash;
  uint64_t widths_hash;
  uint64_t site_hash;
  int32_t root;
  Op op;
  uint8_t reduce_op;
  uint8_t dtype;
  uint8_t num_dims;
  uint32_t num_widths;
  uint32_t on_device;  // 1 if the data is in device memory
};
static_assert(sizeof(CallHeader) == 64);

/// Details of an operation, used only in error messages.
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

/// One member's side of one group. `stamp` counts its posts. A member that posts n+2 knows that all
/// have posted n+1 and so have read n; therefore two copies of everything are enough.
struct MemberSlot {
  // Everything that peers read if the calls agree is in one cache line.
  alignas(64) std::atomic<uint32_t> stamp;
  std::atomic<uint32_t> num_sleepers;
  uint64_t digest[2];  // of the header
  DirectSpan direct[2];
  // Only this member uses it, unless a member leaves by an exception.
  alignas(64) std::atomic<uint32_t> is_touching;  // 1 while it accesses memory of its peers
  alignas(64) CallHeader header[2];
  CallNote note[2];
};

/// The two ends of the message ring from one rank to another. The sender advances `head`, the
/// receiver `tail`. Zero-filled memory is an empty ring.
struct ChannelEnds {
  alignas(64) std::atomic<uint32_t> head;
  std::atomic<uint32_t> num_waiting_receivers;
  alignas(64) std::atomic<uint32_t> tail;
  std::atomic<uint32_t> num_waiting_senders;
};

/// One chunk of a message.
struct MessageChunk {
  CallHeader header;  // of the whole message
  CallNote note;
  uint64_t message_bytes;
  uint64_t bytes;  // in this chunk
  std::byte data[kChunkBytes];
};

/// The message ring from one rank to another.
struct MessageRing : ChannelEnds {
  alignas(64) MessageChunk chunks[kNumChunks];
};

// NOLINTEND(cppcoreguidelines-pro-type-member-init, clang-analyzer-optin.performance.Padding)

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace cleave::inline comm
