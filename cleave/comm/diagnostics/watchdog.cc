#include "cleave/comm/diagnostics/watchdog.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "cleave/base/mutant.h"
#include "cleave/comm/diagnostics/flight_file.h"

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;
using Circle = std::vector<std::pair<int, uint32_t>>;

// A wait shorter than this is never suspected.
constexpr std::chrono::milliseconds kSuspicious{30};
// Looks are at most 10 ms apart; a gap like this means that this rank did not run.
constexpr std::chrono::milliseconds kFrozen{500};
// Ranks in a message, and those whose place it tells: it has 1 KiB and ends with a path. The flight
// log has them all.
constexpr size_t kNumListed = 16;
constexpr size_t kNumPlaces = 3;

/// The wait that stops a whole rank; nothing when another of its threads may end it.
std::optional<std::pair<WaitTarget, uint32_t>> whole_wait_of(const SharedSegment& segment, int rank) {
  if (segment.rank(rank).uses_many_threads.load() != 0) return std::nullopt;
  return wait_of(segment, rank);
}

/// Follows waits from `rank`; returns the ranks of a circle that ends at the first rank of `path`.
Circle find_cycle(const SharedSegment& segment, int rank, Circle& path, std::vector<bool>& seen) {
  const auto wait = whole_wait_of(segment, rank);
  if (!wait) return {};
  seen[static_cast<size_t>(rank)] = true;
  path.emplace_back(rank, wait->second);
  for (const int next : missing_ranks(segment, rank, wait->first)) {
    // A rank inside send or recv takes messages meanwhile, so a sender does not depend on it.
    const auto next_wait = whole_wait_of(segment, next);
    if (!next_wait ||
        (wait->first.kind == WaitKind::kSend && next_wait->first.kind != WaitKind::kGroup)) {
      continue;
    }
    if (next == path.front().first) return path;
    if (seen[static_cast<size_t>(next)]) continue;
    Circle found = find_cycle(segment, next, path, seen);
    if (!found.empty()) return found;
  }
  path.pop_back();
  return {};
}

/// What to add about a rank of another host whose process or network is stuck, or else "".
std::string silence(const TcpReplicator* mirror, int rank) {
  const double seconds = mirror == nullptr ? 0 : mirror->silent_s(rank);
  return seconds < 1 ? "" : str(" (nothing heard from it for ", seconds, " s)");
}

std::string join(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kNumListed); ++i) {
    text += str(i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() <= kNumListed ? text : str(text, " and ", ranks.size() - kNumListed, " more");
}

}  // namespace

Watchdog::Watchdog(RankEndpoint& end, const WaitTarget& awaited)
    : end_(end), awaited_(awaited), began_(Clock::now()), last_look_(began_) {
  if (CallThread::is_in_call()) return;
  RankSlot& slot = end.slot();
  slot.wait_kind.store(awaited.kind, std::memory_order_release);
  slot.wait_group.store(awaited.group, std::memory_order_release);
  slot.wait_stamp.store(awaited.stamp, std::memory_order_release);
  slot.wait_peer.store(awaited.peer, std::memory_order_release);
  slot.wait_epoch.fetch_add(1, std::memory_order_acq_rel);
}

Watchdog::~Watchdog() {
  if (CallThread::is_in_call()) return;
  end_.slot().wait_epoch.fetch_add(1, std::memory_order_acq_rel);
}

/// A job that was suspended, or starved by a busy machine, has waited for nobody meanwhile.
void Watchdog::leave_out_frozen_time() {
  const auto now = Clock::now();
  const auto gap = now - std::exchange(last_look_, now);
  if (gap > kFrozen && !mutant_enabled("wait.counts_frozen_time")) began_ += gap;
}

void Watchdog::look() {
  end_.check();
  leave_out_frozen_time();
  const std::vector<int> missing = missing_ranks(end_.segment(), end_.rank(), awaited_);
  check_gone(missing);
  check_cycle();
  check_time(missing);
}

void Watchdog::note_progress(uint32_t stamp) {
  if (stamp == awaited_.stamp) return;
  awaited_.stamp = stamp;
  if (!CallThread::is_in_call()) end_.slot().wait_stamp.store(stamp, std::memory_order_release);
  began_ = Clock::now();
}

std::string Watchdog::own_place() const {
  return str("rank ", end_.rank(), " waits ", describe_place(end_.segment(), end_.rank()));
}

void Watchdog::check_gone(const std::vector<int>& missing) {
  const SharedSegment& segment = end_.segment();
  for (const int rank : missing) {
    const RankState state = segment.rank(rank).state.load();
    const bool is_dead = end_.is_dead(rank);
    if (is_dead || state == RankState::kUnwound) {
      end_.abort_for(
          rank, Error(Code::kPeer, str("rank ", rank, " (pid ", segment.rank(rank).pid.load(),
                                       is_dead ? ") died " : ") ended by an exception ",
                                       describe_place(segment, rank), describe_step(segment, rank))));
      end_.throw_stopped();
    }
    if (state != RankState::kLeft) continue;
    // It may have done its part and left just now: the second look decides.
    if (!std::exchange(has_seen_left_, true)) return;
    end_.fail(
        Error(Code::kDesync, str("rank ", rank, " has left ", describe_place(segment, rank), ", but ",
                                 own_place(), " for it; every rank must make the same calls")));
  }
}

void Watchdog::check_cycle() {
  // A started call waits beside the rank, which is not stopped by it: no circle goes through it.
  if (CallThread::is_in_call()) return;
  if (Clock::now() - began_ < kSuspicious) return;
  Circle path;
  std::vector<bool> seen(static_cast<size_t>(end_.segment().num_ranks()));
  Circle circle = find_cycle(end_.segment(), end_.rank(), path, seen);
  // The same circle in two looks: none of its waits ended in between, so none ever will.
  TcpReplicator* mirror = end_.mirror();
  if (circle.empty() || circle != suspected_) {
    suspected_ = std::move(circle);
    if (mirror != nullptr && !suspected_.empty()) question_ = mirror->ask();
    return;
  }
  // What other hosts' ranks do is known late: the second look needs answers from after the first.
  const auto has_answered = [&](const auto& wait) {
    return wait.first == end_.rank() || mirror->has_answered(wait.first, question_);
  };
  if (mirror != nullptr && !std::all_of(circle.begin(), circle.end(), has_answered)) return;
  std::string text = "ranks wait for each other: ";
  for (size_t i = 0; i < circle.size(); ++i) {
    const int rank = circle[i].first;
    text += str(i == 0 ? "" : "; ", "rank ", rank, " ", describe_place(end_.segment(), rank),
                " for rank ", circle[(i + 1) % circle.size()].first);
  }
  end_.fail(Error(Code::kDesync, text + "; every rank must make the same calls in the same order"));
}

void Watchdog::check_time(const std::vector<int>& missing) {
  std::chrono::duration<double> waited = Clock::now() - began_;
  if (mutant_enabled("wait.no_timeout")) return;
  if (mutant_enabled("wait.early")) waited *= 2;
  if (waited.count() < end_.options().timeout_s || missing.empty()) return;
  const SharedSegment& segment = end_.segment();
  std::string text =
      str("timeout of ", end_.options().timeout_s, " s: ", own_place(), " for ", join(missing));
  for (const int rank : std::span(missing).first(std::min(missing.size(), kNumPlaces))) {
    text += str("; rank ", rank, " is ", describe_place(segment, rank), describe_step(segment, rank),
                silence(end_.mirror(), rank));
  }
  end_.fail(Error(Code::kTimeout, text + kept_log(text)));
}

std::string Watchdog::kept_log(const std::string& why) const {
  const std::string& folder = end_.options().flight_log_folder;
  if (folder.empty() || mutant_enabled("wait.no_flight_log")) return "";
  try {
    return "; flight log: " + write_flight_log(end_.segment(), end_.rank(), folder, why);
  } catch (const Error& error) {
    // The timeout is the root cause and must not be hidden by a full disk.
    return str("; ", error.what());
  }
}

}  // namespace cleave
