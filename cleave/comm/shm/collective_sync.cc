#include "cleave/comm/shm/collective_sync.h"

#include <algorithm>
#include <thread>

#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/diagnostics/watchdog.h"
#include "cleave/comm/shm/futex.h"

// How the members of a group synchronize:
// 1. A member writes header, digest, note, payload and, among threads, pointers to copy
//    (stamp + 1) % 2 of its own slot. Then it stores stamp + 1; this is a post.
// 2. It waits until every member's stamp is at least that. A member can be one post ahead, never
//    two, so no member overwrites what another one still reads. A member that waits long adds
//    itself to num_sleepers of the member it waits for, rereads the stamp, and sleeps. A member
//    looks for its sleepers only after its own wait. This needs a fence between the store of the
//    stamp and the load of num_sleepers, which costs little once the stamp has reached the other
//    cores.
// 3. At the first post of a collective, agree(), it compares the digests of all headers with its
//    own. All members see the same headers, so all reach the same verdict before any data is
//    touched.
// 4. Between hosts every member has its own replica of the slots; TcpReplicator sends each post.
// 5. Among threads, memory of peers is touched only between is_touching = 1 and 0. A member that
//    leaves by an exception has seen the abort state; it waits until no peer is touching. A peer
//    sets is_touching before it reads the abort state. So either it sees the abort and touches
//    nothing, or the leaving member sees it touching (both orders are sequentially consistent).

namespace cleave::inline comm {
namespace {

/// Full fence: earlier stores are visible to all threads before later loads.
void fence(std::atomic<uint32_t>& own) {
#ifdef __SANITIZE_THREAD__
  own.fetch_add(0, std::memory_order_seq_cst);  // ThreadSanitizer does not support fences
#else
  static_cast<void>(own);
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

CollectiveSync::CollectiveSync(std::shared_ptr<RankEndpoint> endpoint, uint32_t group, int member)
    : endpoint_(std::move(endpoint)),
      group_(group),
      entry_(&endpoint_->segment().group(group)),
      member_(member) {
  for (int m = 0; m < entry_->num_members; ++m) {
    slots_.push_back(&endpoint_->segment().member(*entry_, m));
  }
  inputs_.resize(slots_.size());
  outputs_.resize(slots_.size());
  if (endpoint_->replicator() != nullptr) ranges_.resize(slots_.size());
}

std::byte* CollectiveSync::payload() const {
  return endpoint_->segment().payload(*entry_, member_, (stamp_ + 1) % 2);
}

void CollectiveSync::declare_send(int member, const SendRange& range) {
  if (!ranges_.empty()) ranges_[static_cast<size_t>(member)] = range;
}

void CollectiveSync::declare_send_all(int64_t bytes) {
  std::fill(ranges_.begin(), ranges_.end(), SendRange{0, static_cast<uint64_t>(bytes)});
}

const std::byte* CollectiveSync::payload_of(int member) const {
  return endpoint_->segment().payload(*entry_, member, stamp_ % 2);
}

std::span<const void*> CollectiveSync::payloads(int64_t offset) {
  for (size_t m = 0; m < slots_.size(); ++m) {
    inputs_[m] = payload_of(static_cast<int>(m)) + offset;
  }
  return inputs_;
}

std::span<const void*> CollectiveSync::direct_inputs(int64_t offset) {
  for (size_t m = 0; m < slots_.size(); ++m) {
    inputs_[m] = static_cast<const std::byte*>(slots_[m]->direct[stamp_ % 2].in) + offset;
  }
  return inputs_;
}

std::span<void*> CollectiveSync::direct_outputs(int64_t offset) {
  for (size_t m = 0; m < slots_.size(); ++m) {
    outputs_[m] = static_cast<std::byte*>(slots_[m]->direct[stamp_ % 2].out) + offset;
  }
  return outputs_;
}

void CollectiveSync::begin(const Operation& operation, const DirectSpan& span) {
  endpoint_->note_thread();
  const uint32_t copy = (stamp_ + 1) % 2;
  MemberSlot& own = slot(member_);
  const CallHeader header = make_header(operation, group_, ++sequence_);
  log_number_ = log_begin(endpoint_->slot(), header, operation.call.site);
  // Before the slot is written: a member that failed may still read the contents of two posts ago.
  endpoint_->check();
  own.header[copy] = header;
  own.digest[copy] = digest(header);
  fill_note(own.note[copy], operation);
  own.direct[copy] = span;
}

void CollectiveSync::agree() {
  post();
  wait(true);
  const uint32_t copy = stamp_ % 2;
  const uint64_t own = slot(member_).digest[copy];
  for (const MemberSlot* other : slots_) {
    if (other->digest[copy] != own) return compare();
  }
}

void CollectiveSync::barrier() {
  post();
  wait(false);
}

void CollectiveSync::end() {
  log_end(endpoint_->slot(), log_number_);
}

void CollectiveSync::post() {
  slot(member_).stamp.store(++stamp_, std::memory_order_release);
  if (endpoint_->replicator() == nullptr) return;
  endpoint_->replicator()->post(group_, member_, ranges_);
  declare_send_all(0);
}

void CollectiveSync::wake_sleepers() const {
  MemberSlot& own = slot(member_);
  fence(own.num_sleepers);
  if (own.num_sleepers.load(std::memory_order_relaxed) != 0) futex_wake_all(own.stamp);
}

bool CollectiveSync::has_arrived(int member) const {
  const uint32_t stamp = slot(member).stamp.load(std::memory_order_acquire);
  return static_cast<int32_t>(stamp - stamp_) >= 0;
}

void CollectiveSync::wait(bool compares) {
  for (int m = 0; m < num_members(); ++m) {
    int spins = endpoint_->num_spins();
    while (!has_arrived(m) && --spins > 0) spin_pause();
    if (spins <= 0) wait_for(m, compares);
  }
  wake_sleepers();
}

void CollectiveSync::wait_for(int member, bool compares) {
  wake_sleepers();
  MemberSlot& peer = slot(member);
  const WaitTarget awaited{.kind = WaitKind::kGroup, .group = group_, .stamp = stamp_};
  Watchdog watch(*endpoint_, awaited);
  try {
    while (!has_arrived(member)) {
      peer.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = peer.stamp.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(seen - stamp_) < 0) {
        futex_wait(peer.stamp, seen, Watchdog::kPeriod);
      }
      peer.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
      if (has_arrived(member)) break;
      if (compares) compare();
      watch.check();
    }
  } catch (const Error&) {
    wait_until_untouched();
    throw;
  }
  endpoint_->choose_num_spins();
}

void CollectiveSync::compare() const {
  const MemberSlot* first = nullptr;
  int first_member = 0;
  const uint32_t copy = stamp_ % 2;
  for (int m = 0; m < num_members(); ++m) {
    // While this rank still waits, only members that have arrived have published their headers.
    if (!has_arrived(m)) continue;
    if (first == nullptr) {
      first = &slot(m);
      first_member = m;
    }
    if (is_same_call(first->header[copy], slot(m).header[copy])) continue;
    const auto ranks = endpoint_->segment().group_ranks(*entry_);
    const int a = ranks[static_cast<size_t>(first_member)], b = ranks[static_cast<size_t>(m)];
    endpoint_->fail(Error(
        Code::kDesync,
        str("ranks ", a, " and ", b, " differ on axis ", entry_->name, ": rank ", a, " calls ",
            describe(first->header[copy], first->note[copy]), "; rank ", b, " calls ",
            describe(slot(m).header[copy], slot(m).note[copy]), "; they must be the same")));
  }
}

void CollectiveSync::fail_desync(const std::string& text) {
  endpoint_->fail(Error(Code::kDesync, text));
}

void CollectiveSync::begin_touch() {
  slot(member_).is_touching.store(1, std::memory_order_seq_cst);
  if (!endpoint_->segment().is_aborted()) return;
  end_touch();
  wait_until_untouched();
  endpoint_->throw_stopped();
}

void CollectiveSync::end_touch() {
  slot(member_).is_touching.store(0, std::memory_order_release);
}

/// Waits until no peer touches this rank's memory, before an exception frees it.
void CollectiveSync::wait_until_untouched() const {
  if (!is_direct()) return;
  for (int m = 0; m < num_members(); ++m) {
    while (m != member_ && slot(m).is_touching.load(std::memory_order_seq_cst) != 0) {
      std::this_thread::yield();
    }
  }
}

}  // namespace cleave::inline comm
