#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cleave/comm/operation.h"
#include "cleave/comm/page_mirror.h"
#include "cleave/comm/rank_end.h"

namespace cleave {

/// One member's side of a group: the meeting points of its collectives.
///
/// A collective is begin(), then meet(), then any number of sync(), then end(). What a member wrote
/// to payload() before meet() or sync() its peers read after theirs, until their next one; what
/// each of them reads is said with give(), because between hosts only that travels.
class Exchange {
 public:
  Exchange(std::shared_ptr<RankEnd> end, uint32_t group, int member);

  [[nodiscard]] int member() const { return member_; }
  [[nodiscard]] int num_members() const { return entry_->num_members; }
  [[nodiscard]] RankEnd& end_of_rank() const { return *end_; }
  [[nodiscard]] uint32_t group() const { return group_; }
  /// Whether peers may read this rank's memory in place.
  [[nodiscard]] bool is_direct() const { return end_->page().is_of_threads(); }

  /// Whether each member has its own copy of the page.
  [[nodiscard]] bool is_between_hosts() const { return end_->page().is_mirror(); }

  /// Bytes of a payload, a multiple of 64.
  [[nodiscard]] int64_t payload_bytes() const {
    return static_cast<int64_t>(entry_->payload_bytes);
  }
  /// Where to write what the next meet() or sync() gives to the peers.
  [[nodiscard]] std::byte* payload() const;
  /// Bytes of payload() that the next meet() or sync() gives to a member, or to all.
  void give(int member, const Gift& gift);
  void give_all(int64_t bytes);
  /// What a member gave at the last meet() or sync().
  [[nodiscard]] const std::byte* payload_of(int member) const;
  /// The same of all members, from `offset` on. The caller may change them; the next call does.
  [[nodiscard]] std::span<const void*> payloads(int64_t offset);

  /// Says what this rank is about to do, and which of its memory is read or written for it.
  void begin(const Operation& operation, const DirectSpan& span = {});
  /// Waits for all members and compares what they said. Throws Error(kDesync) on all of them.
  void meet();
  /// Waits until all members are here again.
  void sync();
  void end();

  /// Where the members' memory lies, from `offset` on; between rank threads only. The next call
  /// changes them.
  [[nodiscard]] std::span<const void*> direct_inputs(int64_t offset);
  [[nodiscard]] std::span<void*> direct_outputs(int64_t offset);
  /// Between these two the members' own memory may be touched; only after meet(). begin_touch()
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

  std::shared_ptr<RankEnd> end_;
  uint32_t group_;
  GroupEntry* entry_;
  int member_;
  std::vector<MemberSlot*> slots_;
  std::vector<Gift> gifts_;  // by member; between hosts
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  uint32_t stamp_ = 0;       // of the last post
  uint64_t sequence_ = 0;    // of the last operation
  uint64_t log_number_ = 0;  // of the operation in the flight log
};

}  // namespace cleave
