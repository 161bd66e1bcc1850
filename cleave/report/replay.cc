#include "cleave/report/replay.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

namespace cleave::inline report {
namespace {

/// The calls of all ranks that belong together: the group's name and ranks, the number, and the two
/// ranks of a message (-1 for a collective).
using CallKey = std::tuple<std::string, std::vector<int>, int64_t, int, int>;

CallKey key_of(const RankRecording& r, const StepCall& call) {
  const RecordedAxis& axis = r.axes[static_cast<size_t>(call.axis)];
  int from = -1;
  int to = -1;
  if (call.peer >= 0) {
    const int peer = axis.ranks[static_cast<size_t>(call.peer)];
    from = call.op == "send" ? r.rank : peer;
    to = call.op == "send" ? peer : r.rank;
  }
  return {axis.name, axis.ranks, call.number, from, to};
}

const StepCall* call_of(const RankRecording& r, const StepEvent& event) {
  const bool is_call = event.kind == EventKind::kCollective && event.call >= 0;
  return is_call ? &r.calls[static_cast<size_t>(event.call)] : nullptr;
}

/// Whether an event is left out only after all events of layers.
bool stays(const StepEvent& e) {
  return e.kind != EventKind::kForward && e.kind != EventKind::kRecompute &&
         e.kind != EventKind::kBackward;
}

}  // namespace

void align(std::vector<RankRecording>& ranks) {
  std::map<std::string, double> origins;
  for (const RankRecording& r : ranks) {
    const auto [at, is_new] = origins.emplace(r.host, r.aligned_s);
    if (!is_new) at->second = std::min(at->second, r.aligned_s);
  }
  for (RankRecording& r : ranks) {
    const double shift = r.aligned_s - origins[r.host];
    for (StepEvent& e : r.events) {
      e.begin_s += shift;
      e.end_s += shift;
    }
    for (MemorySample& m : r.memory) m.at_s += shift;
    r.comm_end_s += shift;
    r.step_s += shift;
    r.aligned_s -= shift;
  }
}

namespace {

/// When the last partner of each collective began, and when the sender of each message began.
std::map<CallKey, double> last_begins(const std::vector<RankRecording>& ranks) {
  std::map<CallKey, double> latest;
  for (const RankRecording& r : ranks) {
    for (const StepEvent& e : r.events) {
      const StepCall* call = call_of(r, e);
      if (call == nullptr || call->op == "recv") continue;
      const auto [at, is_new] = latest.emplace(key_of(r, *call), e.begin_s);
      if (!is_new) at->second = std::max(at->second, e.begin_s);
    }
  }
  return latest;
}

}  // namespace

void set_waiting(std::vector<RankRecording>& ranks) {
  const std::map<CallKey, double> latest = last_begins(ranks);
  for (RankRecording& r : ranks) {
    for (StepEvent& e : r.events) {
      const double whole = e.end_s - e.begin_s;
      const StepCall* call = call_of(r, e);
      const auto last = call == nullptr ? latest.end() : latest.find(key_of(r, *call));
      const double until = last == latest.end() ? 0 : last->second - e.begin_s;
      e.wait_s = e.kind == EventKind::kWait ? whole : std::clamp(until, 0.0, whole);
    }
  }
}

void shorten(std::vector<RankRecording>& ranks, size_t most) {
  std::vector<std::pair<bool, double>> all;
  const auto weight = [](const StepEvent& e) { return std::pair(stays(e), e.end_s - e.begin_s); };
  for (const RankRecording& r : ranks) {
    for (const StepEvent& e : r.events) all.push_back(weight(e));
  }
  if (all.size() <= most) return;
  const auto last = all.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(all.begin(), last, all.end(), std::greater<>());
  const auto limit = *last;  // the longest one that is left out
  for (RankRecording& r : ranks) {
    const auto num_left =
        std::erase_if(r.events, [&](const StepEvent& e) { return weight(e) <= limit; });
    r.num_left_out += static_cast<int64_t>(num_left);
  }
}

}  // namespace cleave::inline report
