#include "cleave/comm/shm/collective_sync.h"

#include <algorithm>
#include <thread>

#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/shm/futex.h"
#include "cleave/comm/diagnostics/watchdog.h"

// The meeting of a group's members:
// 1. A member writes header, its digest, note, payload and, among threads, pointers into its own
//    slot, copy (stamp + 1) % 2, and stores stamp + 1.
// 2. It waits until every member's stamp is at least that. A member can be one post ahead, never
//    two, so nobody overwrites what another one still reads. A member that waits long counts itself
//    as a sleeper of the one it waits for, looks at the stamp once more, and sleeps. Who posts
//    looks for sleepers only after its own wait: the fence between the two, without which both
//    could miss each other, costs little once the stamp has reached the other cores.
// 3. At the first meeting of a collective it compares all headers with its own, by their digests.
//    All members see the same headers, so all reach the same verdict before any data is touched.
// 4. Between hosts every member has its own copy of the slots: TcpReplicator carries each post there.
// 5. Among threads, memory of peers is touched between is_touching = 1 and 0. A member that leaves
//    by an exception has seen the abort word set; it waits until no peer is touching. A peer sets
//    is_touching before it reads the abort word, so either it sees the abort and touches nothing,
//    or the leaving member sees it touching (both orders are sequentially consistent).

namespace cleave {
namespace {

/// What was stored before is seen by all before what is loaded after is read.
void fence(std::atomic<uint32_t>& own) {
#ifdef __SANITIZE_THREAD__
  own.fetch_add(0, std::memory_order_seq_cst);  // the sanitizer knows no fences
#else
  static_cast<void>(own);
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

CollectiveSync::CollectiveSync(std::shared_ptr<RankEndpoint> end, uint32_t group, int member)
    : end_(std::move(end)), group_(group), entry_(&end_->segment().group(group)), member_(member) {
  for (int m = 0; m < entry_->num_members; ++m) {
    slots_.push_back(&end_->segment().member(*entry_, m));
  }
  inputs_.resize(slots_.size());
  outputs_.resize(slots_.size());
  if (end_->mirror() != nullptr) ranges_.resize(slots_.size());
}

std::byte* CollectiveSync::payload() const {
  return end_->segment().payload(*entry_, member_, (stamp_ + 1) % 2);
}

void CollectiveSync::give(int member, const SendRange& range) {
  if (!ranges_.empty()) ranges_[static_cast<size_t>(member)] = range;
}

void CollectiveSync::give_all(int64_t bytes) {
  std::fill(ranges_.begin(), ranges_.end(), SendRange{0, static_cast<uint64_t>(bytes)});
}

const std::byte* CollectiveSync::payload_of(int member) const {
  return end_->segment().payload(*entry_, member, stamp_ % 2);
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
  end_->note_thread();
  const uint32_t copy = (stamp_ + 1) % 2;
  MemberSlot& own = slot(member_);
  const CallHeader header = make_header(operation, group_, ++sequence_);
  log_number_ = log_begin(end_->slot(), header, operation.call.site);
  // Before anything is written: a member that failed may still read what stood here two calls ago.
  end_->check();
  own.header[copy] = header;
  own.digest[copy] = digest(header);
  fill_note(own.note[copy], operation);
  own.direct[copy] = span;
}

void CollectiveSync::agree() {
  post();
  wait(true);
  const uint32_t copy = stamp_ % 2;
  const uint64_t wanted = slot(member_).digest[copy];
  for (const MemberSlot* other : slots_) {
    if (other->digest[copy] != wanted) return compare();
  }
}

void CollectiveSync::barrier() {
  post();
  wait(false);
}

void CollectiveSync::end() {
  log_end(end_->slot(), log_number_);
}

void CollectiveSync::post() {
  slot(member_).stamp.store(++stamp_, std::memory_order_release);
  if (end_->mirror() == nullptr) return;
  end_->mirror()->post(group_, member_, ranges_);
  give_all(0);
}

void CollectiveSync::wake_sleepers() const {
  MemberSlot& own = slot(member_);
  fence(own.num_sleepers);
  if (own.num_sleepers.load(std::memory_order_relaxed) != 0) futex_wake_all(own.stamp);
}

bool CollectiveSync::is_here(int member) const {
  const uint32_t stamp = slot(member).stamp.load(std::memory_order_acquire);
  return static_cast<int32_t>(stamp - stamp_) >= 0;
}

void CollectiveSync::wait(bool compares) {
  for (int m = 0; m < num_members(); ++m) {
    int spins = end_->num_spins();
    while (!is_here(m) && --spins > 0) spin_pause();
    if (spins <= 0) wait_for(m, compares);
  }
  wake_sleepers();
}

void CollectiveSync::wait_for(int member, bool compares) {
  wake_sleepers();
  MemberSlot& peer = slot(member);
  const WaitTarget awaited{.kind = WaitKind::kGroup, .group = group_, .stamp = stamp_};
  Watchdog watch(*end_, awaited);
  try {
    while (!is_here(member)) {
      peer.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = peer.stamp.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(seen - stamp_) < 0) {
        futex_wait(peer.stamp, seen, Watchdog::kPeriod);
      }
      peer.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
      if (is_here(member)) break;
      if (compares) compare();
      watch.look();
    }
  } catch (const Error&) {
    leave();
    throw;
  }
  end_->choose_num_spins();
}

void CollectiveSync::compare() const {
  const MemberSlot* first = nullptr;
  int first_member = 0;
  const uint32_t copy = stamp_ % 2;
  for (int m = 0; m < num_members(); ++m) {
    // While this rank still waits, only those that are here have said what they do.
    if (!is_here(m)) continue;
    if (first == nullptr) {
      first = &slot(m);
      first_member = m;
    }
    if (is_same_call(first->header[copy], slot(m).header[copy])) continue;
    const auto ranks = end_->segment().group_ranks(*entry_);
    const int a = ranks[static_cast<size_t>(first_member)], b = ranks[static_cast<size_t>(m)];
    end_->fail(Error(
        Code::kDesync,
        str("ranks ", a, " and ", b, " differ on axis ", entry_->name, ": rank ", a, " calls ",
            describe(first->header[copy], first->note[copy]), "; rank ", b, " calls ",
            describe(slot(m).header[copy], slot(m).note[copy]), "; these must be alike")));
  }
}

void CollectiveSync::refuse(const std::string& text) {
  end_->fail(Error(Code::kDesync, text));
}

void CollectiveSync::begin_touch() {
  slot(member_).is_touching.store(1, std::memory_order_seq_cst);
  if (!end_->segment().is_aborted()) return;
  end_touch();
  leave();
  end_->throw_stopped();
}

void CollectiveSync::end_touch() {
  slot(member_).is_touching.store(0, std::memory_order_release);
}

void CollectiveSync::leave() const {
  if (!is_direct()) return;
  for (int m = 0; m < num_members(); ++m) {
    while (m != member_ && slot(m).is_touching.load(std::memory_order_seq_cst) != 0) {
      std::this_thread::yield();
    }
  }
}

}  // namespace cleave
