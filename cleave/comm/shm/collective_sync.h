#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/net/tcp_replicator.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave {

/// One member's side of a group: the meeting points of its collectives.
///
/// A collective is begin(), then agree(), then any number of barrier(), then end(). What a member wrote
/// to payload() before agree() or barrier() its peers read after theirs, until their next one; what
/// each of them reads is said with give(), because between hosts only that travels.
class CollectiveSync {
 public:
  CollectiveSync(std::shared_ptr<RankEndpoint> end, uint32_t group, int member);

  [[nodiscard]] int member() const { return member_; }
  [[nodiscard]] int num_members() const { return entry_->num_members; }
  [[nodiscard]] RankEndpoint& end_of_rank() const { return *end_; }
  [[nodiscard]] uint32_t group() const { return group_; }
  /// Whether peers may read this rank's memory in place.
  [[nodiscard]] bool is_direct() const { return end_->segment().is_of_threads(); }

  /// Whether each member has its own copy of the segment.
  [[nodiscard]] bool is_between_hosts() const { return end_->segment().is_mirror(); }

  /// Bytes of a payload, a multiple of 64.
  [[nodiscard]] int64_t payload_bytes() const {
    return static_cast<int64_t>(entry_->payload_bytes);
  }
  /// Where to write what the next agree() or barrier() gives to the peers.
  [[nodiscard]] std::byte* payload() const;
  /// Bytes of payload() that the next agree() or barrier() gives to a member, or to all.
  void give(int member, const SendRange& range);
  void give_all(int64_t bytes);
  /// What a member gave at the last agree() or barrier().
  [[nodiscard]] const std::byte* payload_of(int member) const;
  /// The same of all members, from `offset` on. The caller may change them; the next call does.
  [[nodiscard]] std::span<const void*> payloads(int64_t offset);

  /// Says what this rank is about to do, and which of its memory is read or written for it.
  void begin(const Operation& operation, const DirectSpan& span = {});
  /// Waits for all members and compares what they said. Throws Error(kDesync) on all of them.
  void agree();
  /// Waits until all members are here again.
  void barrier();
  void end();

  /// Where the members' memory lies, from `offset` on; between rank threads only. The next call
  /// changes them.
  [[nodiscard]] std::span<const void*> direct_inputs(int64_t offset);
  [[nodiscard]] std::span<void*> direct_outputs(int64_t offset);
  /// Between these two the members' own memory may be touched; only after agree(). begin_touch()
  /// throws when the job has failed: then a peer may be about to free its memory.
  void begin_touch();
  void end_touch();

  /// Throws Error(kDesync) with this text on all members.
  [[noreturn]] void refuse(const std::string& text);

 private:
  void post();
  void wake_sleepers() const;
  void wait(bool compares);
  void wait_for(int member, bool compares);
  void compare() const;
  void leave() const;
  [[nodiscard]] MemberSlot& slot(int member) const { return *slots_[static_cast<size_t>(member)]; }
  [[nodiscard]] bool is_here(int member) const;

  std::shared_ptr<RankEndpoint> end_;
  uint32_t group_;
  GroupEntry* entry_;
  int member_;
  std::vector<MemberSlot*> slots_;
  std::vector<SendRange> ranges_;  // by member; between hosts
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  uint32_t stamp_ = 0;       // of the last post
  uint64_t sequence_ = 0;    // of the last operation
  uint64_t log_number_ = 0;  // of the operation in the flight log
};

}  // namespace cleave
