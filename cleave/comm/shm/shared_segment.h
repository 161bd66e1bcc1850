#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave::inline comm {

/// The first failure of a job.
struct Abort {
  int rank = 0;  ///< that failed
  Code code = Code::kBug;
  int64_t step = -1;      ///< of that rank; -1 if it never reported one
  uint64_t sequence = 0;  ///< of its last operation on `group`
  Op op = Op::kNone;
  std::string group;  ///< axis of that operation
  std::string text;   ///< at most 1 KiB
};

/// The state that all ranks of a job share. On one host they share its memory. On several, each
/// rank has a replica of it, and the ranks of each host share another segment. Thread safe.
class SharedSegment {
 public:
  /// Memory of this process, for rank threads.
  static std::shared_ptr<SharedSegment> create_private(int num_ranks);

  /// A sealed memfd with all its pages reserved, for rank processes. Throws Error(kMemory) if there
  /// is not enough memory.
  static std::shared_ptr<SharedSegment> create_shared(int num_ranks);

  /// The same for the `num_present` ranks of one host, in a job of `num_ranks` on several hosts.
  static std::shared_ptr<SharedSegment> create_for_host(int num_ranks, int num_present);

  /// Maps a memfd from create_shared(), possibly of another process, and takes ownership of `fd`.
  /// Throws Error(kUsage) if it is not a shared segment, Error(kShape) if it has another version.
  static std::shared_ptr<SharedSegment> attach(int fd);

  /// Memory of this process: the replica of `rank`, for a job on several hosts.
  static std::shared_ptr<SharedSegment> create_replica(int num_ranks, int rank);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  [[nodiscard]] int num_ranks() const { return header().num_ranks; }
  /// The number of ranks that use this segment; num_ranks() unless it is one host's of several.
  [[nodiscard]] int num_present() const { return header().num_present; }
  /// In a host's segment: whether a rank is on that host. Known once all its ranks connected.
  [[nodiscard]] bool has_rank(int rank) const { return this->rank(rank).pid.load() != 0; }
  [[nodiscard]] int fd() const { return fd_; }  ///< -1 for private memory
  [[nodiscard]] bool is_shared() const { return fd_ >= 0; }
  [[nodiscard]] bool is_replica() const { return header().replica_of >= 0; }
  /// Whether all ranks are threads of this process.
  [[nodiscard]] bool is_of_threads() const { return !is_shared() && !is_replica(); }

  /// The segment's parts: the slot of a rank, a group, its ranks, and the slot of a member.
  [[nodiscard]] RankSlot& rank(int rank) const;
  [[nodiscard]] GroupEntry& group(uint32_t index) const;
  [[nodiscard]] std::span<const int32_t> group_ranks(const GroupEntry& entry) const;
  [[nodiscard]] MemberSlot& member(const GroupEntry& entry, int member) const;
  /// Buffer 0 or 1 of a member: entry.payload_bytes bytes.
  [[nodiscard]] std::byte* payload(const GroupEntry& entry, int member, uint32_t buffer) const;

  /// The index of the group with this key. The first call for a key makes the group; later calls
  /// check only the key.
  uint32_t join_group(uint64_t key, std::span<const int> ranks, std::string_view name);
  /// The index of the group with this key, if it has been made.
  [[nodiscard]] std::optional<uint32_t> find_group(uint64_t key) const;

  /// The message ring from one world rank to another; created on first use.
  MessageRing& ring(int from, int to);
  /// The head and tail of that ring; nullptr if it does not exist yet.
  [[nodiscard]] ChannelEnds* channel_ends(int from, int to) const;
  /// Head and tail, without chunks, of a ring between two other ranks; created on first use.
  ChannelEnds& make_channel_ends(int from, int to);

  /// The memory at an offset.
  [[nodiscard]] std::byte* at(uint64_t offset) const { return base_ + offset; }

  /// Records the first failure; false if there is one already.
  bool abort(const Abort& cause);
  /// Whether a failure is recorded; costs one load.
  [[nodiscard]] bool is_aborted() const {
    return header().abort.state.load(std::memory_order_seq_cst) != AbortState::kNone;
  }
  [[nodiscard]] std::optional<Abort> aborted() const;
  /// If one of two segments of a job has recorded a failure, records it in the other one.
  static void share_failure(SharedSegment& a, SharedSegment& b);

  /// Records the command that resumes the job after a failure, for messages. The last call counts.
  void note_resume_hint(std::string_view text);
  [[nodiscard]] std::string resume_hint() const;

 private:
  SharedSegment(std::byte* base, uint64_t bytes, int fd) : base_(base), bytes_(bytes), fd_(fd) {}
  static std::shared_ptr<SharedSegment> make(int num_ranks, uint64_t arena_bytes);
  void fill(int num_ranks, int num_present);
  [[nodiscard]] JobHeader& header() const;
  uint64_t channel(int from, int to, uint64_t bytes);
  void fill_group(GroupEntry& entry, std::span<const int> ranks, std::string_view name);
  [[nodiscard]] std::atomic<uint64_t>& channel_offset(int from, int to) const;
  void wait_until_ready(const GroupEntry& entry, std::string_view name) const;
  uint64_t allocate(uint64_t bytes);
  uint64_t try_allocate(uint64_t bytes, uint64_t reserved);

  std::byte* base_;
  uint64_t bytes_;
  int fd_;
};

}  // namespace cleave::inline comm
