#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cleave/base/progress.h"
#include "cleave/base/str.h"
#include "cleave/planner/machine.h"

namespace cleave::inline planner {
namespace {

double message_s(const DryTraffic& traffic, double call_s, double bytes_per_s) {
  double seconds = static_cast<double>(traffic.num_calls) * call_s;
  if (bytes_per_s > 0) seconds += static_cast<double>(traffic.bytes) / bytes_per_s;
  return seconds;
}

/// A pipeline rank's step.
struct RankTime {
  std::map<std::pair<Action::Kind, int>, KindSeconds> actions{};  // of one micro-batch each
  double action_message_s = 0;  // messages of an action, the mean of all
  KindSeconds last{};           // after the actions
  double last_message_s = 0;
  size_t num_actions = 0;

  /// Its own work.
  [[nodiscard]] KindSeconds own(const std::vector<Action>& order) const {
    KindSeconds sum = last;
    for (const Action& a : order) add_seconds(sum, actions.at({a.kind, a.stage}));
    return sum;
  }
  [[nodiscard]] double messages() const {
    return action_message_s * static_cast<double>(num_actions) + last_message_s;
  }
};

RankTime rank_time(const RankForecast& f, size_t num_actions, const Machine& machine) {
  RankTime out{.num_actions = num_actions};
  for (const auto& [action, work] : f.actions) {
    out.actions[action] = machine.rank.seconds_of(work);
  }
  out.last = machine.rank.seconds_of(f.rest);
  out.last.at(static_cast<size_t>(TimeKind::kOptimizer)) +=
      machine.rank.far_pass_s(f.optimizer_bytes);
  // Tensor parallelism and the pipeline communicate in the actions, gradient sync after them.
  const double in_actions_s = message_s(f.tp, machine.call_s, machine.bytes_per_s) +
                              message_s(f.pp, machine.call_s, machine.bytes_per_s);
  out.action_message_s = in_actions_s / static_cast<double>(std::max<size_t>(1, num_actions));
  out.last_message_s = message_s(f.dp, machine.call_s, machine.bucket_bytes_per_s);
  return out;
}

/// When the last rank has finished its actions, and then what comes after them.
double end_of(const Schedule& schedule, const std::vector<RankTime>& ranks) {
  const auto cost = [&](const Action& a) {
    const RankTime& rank = ranks[static_cast<size_t>(a.stage) % ranks.size()];
    return total_of(rank.actions.at({a.kind, a.stage})) + rank.action_message_s;
  };
  double last = 0;
  for (const RankTime& r : ranks) last = std::max(last, total_of(r.last) + r.last_message_s);
  return timeline_of(schedule, cost).end + last;
}

}  // namespace

double StepTime::total() const {
  return total_of(kinds);
}

std::string kinds_text(const StepTime& time) {
  std::string out;
  for (int k = 0; k < kNumTimeKinds; ++k) {
    const auto kind = static_cast<TimeKind>(k);
    if (time.of(kind) <= 0) continue;
    out += str(out.empty() ? "" : ", ", name(kind), ' ', duration_text(time.of(kind)));
  }
  return out;
}

StepTime step_time(const Forecast& forecast, const ParallelConfig& layout, const Machine& machine) {
  std::vector<RankTime> ranks;
  std::vector<KindSeconds> own;
  double cpu_s = 0;  // of all ranks
  for (size_t p = 0; p < forecast.ranks.size(); ++p) {
    const std::vector<Action>& order = forecast.schedule.ranks.at(p);
    ranks.push_back(rank_time(forecast.ranks[p], order.size(), machine));
    own.push_back(ranks.back().own(order));
    cpu_s += (total_of(own.back()) + ranks.back().messages()) * layout.tp * layout.dp;
  }
  double seconds = end_of(forecast.schedule, ranks);
  double share = 1;  // of a CPU's time, that a rank gets
  if (machine.num_cpus > 0 && layout.num_ranks() > machine.num_cpus) {
    seconds = std::max(seconds, cpu_s / machine.num_cpus);
    share = static_cast<double>(machine.num_cpus) / layout.num_ranks();
  }
  StepTime time;
  const double work_s = total_of(own[0]);
  // A rank that shares its CPU works for longer, but not longer than the step.
  const double stretch = work_s > 0 ? std::min(1 / share, seconds / work_s) : 1;
  add_seconds(time.kinds, own[0], stretch);
  const double rest = seconds - time.total();
  constexpr double kRounding = 1e-9;
  if (rest > kRounding * seconds) {
    time.kinds.at(static_cast<size_t>(TimeKind::kCollectives)) += rest;
    time.waiting = std::max(0.0, rest - stretch * ranks[0].messages());
  }
  return time;
}

}  // namespace cleave::inline planner
