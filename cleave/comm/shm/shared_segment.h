#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave {

/// The first failure of a job, as its ranks and its launcher read it.
struct Abort {
  int rank = 0;  ///< who failed
  Code code = Code::kBug;
  int64_t step = -1;      ///< where that rank was; -1 when it never said
  uint64_t sequence = 0;  ///< of its last operation on `group`
  Op op = Op::kNone;
  std::string group;  ///< axis of that operation
  std::string text;   ///< at most 1 KiB
};

/// What all ranks of a job know of each other: memory that those of one host share, or a copy for
/// each rank of several hosts. Thread safe.
class SharedSegment {
 public:
  /// Memory of this process, for rank threads.
  static std::shared_ptr<SharedSegment> create_private(int num_ranks);

  /// A sealed memfd with all its segments reserved, for rank processes. Throws Error(kMemory) when
  /// there is not enough.
  static std::shared_ptr<SharedSegment> create_shared(int num_ranks);

  /// Maps the memfd that create_shared() made, maybe in another process; takes over `fd`. Throws
  /// Error(kUsage) when it is none, Error(kShape) when another version of Cleave made it.
  static std::shared_ptr<SharedSegment> attach(int fd);

  /// Memory of this process: the copy of `rank`, whose job is on several hosts.
  static std::shared_ptr<SharedSegment> create_mirror(int num_ranks, int rank);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  [[nodiscard]] int num_ranks() const { return header().num_ranks; }
  [[nodiscard]] int fd() const { return fd_; }  ///< -1 for private memory
  [[nodiscard]] bool is_shared() const { return fd_ >= 0; }
  [[nodiscard]] bool is_mirror() const { return header().mirror_of >= 0; }
  /// Whether all ranks are threads of this process.
  [[nodiscard]] bool is_of_threads() const { return !is_shared() && !is_mirror(); }

  /// The segment's parts: a rank's, a group's, and a member's of a group.
  [[nodiscard]] RankSlot& rank(int rank) const;
  [[nodiscard]] GroupEntry& group(uint32_t index) const;
  [[nodiscard]] std::span<const int32_t> group_ranks(const GroupEntry& entry) const;
  [[nodiscard]] MemberSlot& member(const GroupEntry& entry, int member) const;
  /// Buffer 0 or 1 of a member: entry.payload_bytes bytes.
  [[nodiscard]] std::byte* payload(const GroupEntry& entry, int member, uint32_t buffer) const;

  /// The index of the group with this key, made on the first call for it. Checks nothing else.
  uint32_t join_group(uint64_t key, std::span<const int> ranks, std::string_view name);
  /// The index of the group with this key when it is made.
  [[nodiscard]] std::optional<uint32_t> find_group(uint64_t key) const;

  /// The ring of messages from one world rank to another, made when asked for first.
  MessageRing& ring(int from, int to);
  /// Its ends, which it begins with; nullptr when nobody has asked for it yet.
  [[nodiscard]] ChannelEnds* channel_ends(int from, int to) const;
  /// The ends alone, made when asked for first: of a ring between two other ranks.
  ChannelEnds& make_channel_ends(int from, int to);

  /// The memory at an offset.
  [[nodiscard]] std::byte* at(uint64_t offset) const { return base_ + offset; }

  /// Records the first failure; false when another one was first.
  bool abort(const Abort& cause);
  /// Whether any failure is recorded; one load.
  [[nodiscard]] bool is_aborted() const {
    return header().abort.state.load(std::memory_order_seq_cst) != AbortState::kNone;
  }
  [[nodiscard]] std::optional<Abort> aborted() const;

  /// What a user types to go on after a failure, for messages about it; the last one counts.
  void note_resume_hint(std::string_view text);
  [[nodiscard]] std::string resume_hint() const;

 private:
  SharedSegment(std::byte* base, uint64_t bytes, int fd) : base_(base), bytes_(bytes), fd_(fd) {}
  static std::shared_ptr<SharedSegment> make(uint64_t bytes, int num_ranks);
  void fill(int num_ranks);
  [[nodiscard]] JobHeader& header() const;
  uint64_t channel(int from, int to, uint64_t bytes);
  void fill_group(GroupEntry& entry, std::span<const int> ranks, std::string_view name);
  [[nodiscard]] std::atomic<uint64_t>& channel_offset(int from, int to) const;
  void wait_until_ready(const GroupEntry& entry, std::string_view name) const;
  uint64_t take(uint64_t bytes);
  uint64_t try_take(uint64_t bytes, uint64_t left_over);

  std::byte* base_;
  uint64_t bytes_;
  int fd_;
};

}  // namespace cleave
