#include "cleave/comm/diagnostics/watchdog.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "cleave/comm/diagnostics/flight_file.h"

namespace cleave::inline comm {

std::vector<int> missing_ranks(const SharedSegment& segment, int rank, const WaitTarget& awaited) {
  if (awaited.kind != WaitKind::kGroup) {
    const bool receives = awaited.kind == WaitKind::kRecv;
    const ChannelEnds* ring = receives ? segment.channel_ends(awaited.peer, rank)
                                       : segment.channel_ends(rank, awaited.peer);
    if (ring == nullptr) return {};
    const uint32_t end = (receives ? ring->head : ring->tail).load(std::memory_order_acquire);
    return end == awaited.stamp ? std::vector{awaited.peer} : std::vector<int>{};
  }
  const GroupEntry& entry = segment.group(awaited.group);
  std::vector<int> missing;
  for (int m = 0; m < entry.num_members; ++m) {
    const uint32_t stamp = segment.member(entry, m).stamp.load(std::memory_order_acquire);
    if (static_cast<int32_t>(stamp - awaited.stamp) < 0) {
      missing.push_back(segment.group_ranks(entry)[static_cast<size_t>(m)]);
    }
  }
  return missing;
}

std::optional<std::pair<WaitTarget, uint32_t>> wait_of(const SharedSegment& segment, int rank) {
  const RankSlot& slot = segment.rank(rank);
  const uint32_t epoch = slot.wait_epoch.load(std::memory_order_acquire);
  if (epoch % 2 == 0) return std::nullopt;
  const WaitTarget awaited{.kind = slot.wait_kind.load(std::memory_order_acquire),
                           .group = slot.wait_group.load(std::memory_order_acquire),
                           .stamp = slot.wait_stamp.load(std::memory_order_acquire),
                           .peer = slot.wait_peer.load(std::memory_order_acquire)};
  if (slot.wait_epoch.load(std::memory_order_acquire) != epoch) return std::nullopt;
  return std::pair{awaited, epoch};
}

namespace {

using Clock = std::chrono::steady_clock;
using Cycle = std::vector<std::pair<int, uint32_t>>;  // ranks and their wait epochs

// Shorter waits are not checked for deadlock.
constexpr std::chrono::milliseconds kMinCycleWait{30};
// Checks are at most 10 ms apart; a gap of this length means that this rank was suspended.
constexpr std::chrono::milliseconds kFrozen{500};
// Number of ranks that a message lists, and whose place it gives: a message has 1 KiB and ends with
// a path. The flight log has all ranks.
constexpr size_t kNumListed = 16;
constexpr size_t kNumPlaces = 3;

/// The wait that blocks a whole rank; nullopt if another of its threads may end it.
std::optional<std::pair<WaitTarget, uint32_t>> blocking_wait_of(const SharedSegment& segment,
                                                                int rank) {
  if (segment.rank(rank).uses_many_threads.load() != 0) return std::nullopt;
  return wait_of(segment, rank);
}

/// Follows waits from `rank`; returns the cycle that leads back to the first rank of `path`, if
/// any.
Cycle find_cycle(const SharedSegment& segment, int rank, Cycle& path, std::vector<bool>& seen) {
  const auto wait = blocking_wait_of(segment, rank);
  if (!wait) return {};
  seen[static_cast<size_t>(rank)] = true;
  path.emplace_back(rank, wait->second);
  for (const int next : missing_ranks(segment, rank, wait->first)) {
    // A rank in send or recv drains incoming messages, so a sender does not block on it.
    const auto next_wait = blocking_wait_of(segment, next);
    if (!next_wait ||
        (wait->first.kind == WaitKind::kSend && next_wait->first.kind != WaitKind::kGroup)) {
      continue;
    }
    if (next == path.front().first) return path;
    if (seen[static_cast<size_t>(next)]) continue;
    Cycle found = find_cycle(segment, next, path, seen);
    if (!found.empty()) return found;
  }
  path.pop_back();
  return {};
}

/// A note on a rank of another host that has sent nothing for a second or more; "" otherwise.
std::string describe_silence(const TcpReplicator* replicator, int rank) {
  const double seconds = replicator == nullptr ? 0 : replicator->seconds_silent(rank);
  return seconds < 1 ? "" : str(" (nothing received from it for ", seconds, " s)");
}

std::string join(const std::vector<int>& ranks) {
  const auto listed = std::span(ranks).first(std::min(ranks.size(), kNumListed));
  const std::string text = (ranks.size() == 1 ? "rank " : "ranks ") + list_text(listed);
  return ranks.size() <= kNumListed ? text : str(text, " and ", ranks.size() - kNumListed, " more");
}

}  // namespace

bool report_if_gone(RankEndpoint& endpoint, int rank) {
  const SharedSegment& segment = endpoint.segment();
  const RankState state = segment.rank(rank).state.load();
  const bool is_dead = endpoint.is_dead(rank);
  if (!is_dead && state != RankState::kUnwound) return false;
  endpoint.abort_for(rank,
                     Error(Code::kPeer, str("rank ", rank, " (pid ", segment.rank(rank).pid.load(),
                                            is_dead ? ") died " : ") ended by an exception ",
                                            describe_place(segment, endpoint.beside(), rank),
                                            describe_step(segment, rank))));
  return true;
}

Watchdog::Watchdog(RankEndpoint& endpoint, const WaitTarget& awaited)
    : endpoint_(endpoint), awaited_(awaited), began_(Clock::now()), last_check_(began_) {
  if (CallThread::is_in_call()) return;
  RankSlot& slot = endpoint.slot();
  slot.wait_kind.store(awaited.kind, std::memory_order_release);
  slot.wait_group.store(awaited.group, std::memory_order_release);
  slot.wait_stamp.store(awaited.stamp, std::memory_order_release);
  slot.wait_peer.store(awaited.peer, std::memory_order_release);
  slot.wait_epoch.fetch_add(1, std::memory_order_acq_rel);
}

Watchdog::~Watchdog() {
  if (CallThread::is_in_call()) return;
  endpoint_.slot().wait_epoch.fetch_add(1, std::memory_order_acq_rel);
}

/// Time in which this rank was suspended or starved does not count toward the timeout. All of a
/// check uses the same time, last_check_: the next check sees a suspension in the middle of it.
void Watchdog::exclude_frozen_time() {
  const auto now = Clock::now();
  const auto gap = now - std::exchange(last_check_, now);
  if (gap > kFrozen) began_ += gap;
}

void Watchdog::check() {
  endpoint_.check();
  endpoint_.make_progress();
  exclude_frozen_time();
  const std::vector<int> missing = missing_ranks(endpoint_.segment(), endpoint_.rank(), awaited_);
  check_gone(missing);
  check_cycle();
  check_time(missing);
}

void Watchdog::note_progress(uint32_t stamp) {
  if (stamp == awaited_.stamp) return;
  awaited_.stamp = stamp;
  if (!CallThread::is_in_call())
    endpoint_.slot().wait_stamp.store(stamp, std::memory_order_release);
  began_ = Clock::now();
}

std::string Watchdog::own_place() const {
  const SharedSegment& own = endpoint_.segment();
  const SharedSegment* const beside = endpoint_.beside();
  // A collective of the job also waits in the segment of its host.
  const bool is_beside = beside != nullptr && !current_operation(own, endpoint_.rank()) &&
                         current_operation(*beside, endpoint_.rank());
  return str("rank ", endpoint_.rank(), " waits ",
             describe_place(is_beside ? *beside : own, endpoint_.rank()));
}

void Watchdog::check_gone(const std::vector<int>& missing) {
  const SharedSegment& segment = endpoint_.segment();
  for (const int rank : missing) {
    const RankState state = segment.rank(rank).state.load();
    if (report_if_gone(endpoint_, rank)) endpoint_.throw_stopped();
    if (state != RankState::kLeft) continue;
    // It may have done its part and left just now: the second check decides.
    if (!std::exchange(has_seen_left_, true)) return;
    endpoint_.fail(
        Error(Code::kDesync,
              str("rank ", rank, " has left ", describe_place(segment, endpoint_.beside(), rank),
                  ", but ", own_place(), " for it; every rank must make the same calls")));
  }
}

void Watchdog::check_cycle() {
  // A started call does not block its rank, so it cannot be part of a deadlock cycle.
  if (CallThread::is_in_call()) return;
  if (last_check_ - began_ < kMinCycleWait) return;
  Cycle path;
  std::vector<bool> seen(static_cast<size_t>(endpoint_.segment().num_ranks()));
  Cycle cycle = find_cycle(endpoint_.segment(), endpoint_.rank(), path, seen);
  // The same cycle in two checks: none of its waits ended in between, so none ever will.
  TcpReplicator* replicator = endpoint_.replicator();
  if (cycle.empty() || cycle != suspected_) {
    suspected_ = std::move(cycle);
    if (replicator != nullptr && !suspected_.empty()) {
      snapshot_request_ = replicator->request_snapshots();
    }
    return;
  }
  // The state of ranks on other hosts arrives late: the second check needs snapshots taken after
  // the first.
  const auto is_up_to_date = [&](const auto& wait) {
    return wait.first == endpoint_.rank() ||
           replicator->has_snapshot_since(wait.first, snapshot_request_);
  };
  if (replicator != nullptr && !std::all_of(cycle.begin(), cycle.end(), is_up_to_date)) return;
  std::string text = "ranks wait for each other: ";
  for (size_t i = 0; i < cycle.size(); ++i) {
    const int rank = cycle[i].first;
    text += str(i == 0 ? "" : "; ", "rank ", rank, " ", describe_place(endpoint_.segment(), rank),
                " for rank ", cycle[(i + 1) % cycle.size()].first);
  }
  endpoint_.fail(
      Error(Code::kDesync, text + "; every rank must make the same calls in the same order"));
}

void Watchdog::check_time(const std::vector<int>& missing) {
  const std::chrono::duration<double> waited = last_check_ - began_;
  if (waited.count() < endpoint_.options().timeout_s || missing.empty()) return;
  const SharedSegment& segment = endpoint_.segment();
  std::string text = str("timeout of ", endpoint_.options().timeout_s, " s: ", own_place(), " for ",
                         join(missing));
  for (const int rank : std::span(missing).first(std::min(missing.size(), kNumPlaces))) {
    text += str("; rank ", rank, " is ", describe_place(segment, endpoint_.beside(), rank),
                describe_step(segment, rank), describe_silence(endpoint_.replicator(), rank));
  }
  endpoint_.fail(Error(Code::kTimeout, text + save_flight_log(endpoint_, text)));
}

std::string save_flight_log(const RankEndpoint& endpoint, const std::string& why) {
  const std::string& folder = endpoint.options().flight_log_folder;
  if (folder.empty()) return "";
  try {
    return "; flight log: " +
           write_flight_log(endpoint.segment(), endpoint.rank(), folder, why, endpoint.beside());
  } catch (const Error& error) {
    // A full disk must not hide the root cause, the timeout.
    return str("; ", error.what());
  }
}

}  // namespace cleave::inline comm
