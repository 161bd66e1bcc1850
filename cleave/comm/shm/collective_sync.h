#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/net/tcp_replicator.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// One member's side of a group: synchronizes the members of its collectives.
///
/// A collective calls begin(), agree(), barrier() any number of times, and end(). What a member
/// writes to payload() before agree() or barrier(), its peers read after their own call and before
/// their next one. declare_send() declares which bytes each peer reads, because only these are sent
/// to other hosts.
class CollectiveSync {
 public:
  CollectiveSync(std::shared_ptr<RankEndpoint> endpoint, uint32_t group, int member);

  [[nodiscard]] int member() const { return member_; }
  [[nodiscard]] int num_members() const { return entry_->num_members; }
  [[nodiscard]] RankEndpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] uint32_t group() const { return group_; }
  /// Whether peers may read this rank's memory in place.
  [[nodiscard]] bool is_direct() const { return endpoint_->segment().is_of_threads(); }

  /// Whether each member has its own replica of the segment.
  [[nodiscard]] bool is_between_hosts() const { return endpoint_->segment().is_replica(); }

  /// Bytes of a payload, a multiple of 64.
  [[nodiscard]] int64_t payload_bytes() const {
    return static_cast<int64_t>(entry_->payload_bytes);
  }
  /// Where to write what the next agree() or barrier() publishes to the peers.
  [[nodiscard]] std::byte* payload() const;
  /// Declares the bytes of payload() that the next agree() or barrier() sends to a member, or to
  /// all.
  void declare_send(int member, const SendRange& range);
  void declare_send_all(int64_t bytes);
  /// What a member published at the last agree() or barrier().
  [[nodiscard]] const std::byte* payload_of(int member) const;
  /// Pointers to the payloads of all members, plus `offset`. The caller may change the pointers;
  /// the next call overwrites them.
  [[nodiscard]] std::span<const void*> payloads(int64_t offset);

  /// Begins a collective: publishes its header, and the memory of this rank that peers may access.
  void begin(const Operation& operation, const DirectSpan& span = {});
  /// Waits for all members and compares their headers. Throws Error(kDesync) on all members if they
  /// differ.
  void agree();
  /// Waits for all members.
  void barrier();
  void end();

  /// Pointers to the memory of all members, plus `offset`; only between rank threads. The next call
  /// overwrites them.
  [[nodiscard]] std::span<const void*> direct_inputs(int64_t offset);
  [[nodiscard]] std::span<void*> direct_outputs(int64_t offset);
  /// The memory of other members may be accessed only between these two calls, after agree().
  /// begin_touch() throws if the job has failed, because a peer may then free its memory.
  void begin_touch();
  void end_touch();

  /// Throws Error(kDesync) with this text on all members.
  [[noreturn]] void fail_desync(const std::string& text);

 private:
  void post();
  void wake_sleepers() const;
  void wait(bool compares);
  void wait_for(int member, bool compares);
  void compare() const;
  void wait_until_untouched() const;
  [[nodiscard]] MemberSlot& slot(int member) const { return *slots_[static_cast<size_t>(member)]; }
  [[nodiscard]] bool has_arrived(int member) const;

  std::shared_ptr<RankEndpoint> endpoint_;
  uint32_t group_;
  GroupEntry* entry_;
  int member_;
  std::vector<MemberSlot*> slots_;
  std::vector<SendRange> ranges_;  // by member; only between hosts
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  uint32_t stamp_ = 0;       // of the last post
  uint64_t sequence_ = 0;    // of the last operation
  uint64_t log_number_ = 0;  // of the operation in the flight log
};

}  // namespace cleave::inline comm
