#include "cleave/report/replay_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace cleave::inline report {
namespace {

using Object = nlohmann::ordered_json;

Object number(double value) {
  return std::isfinite(value) ? Object(value) : Object();
}

Object metrics_json(const StepMetrics& m) {
  return {{"loss", number(m.loss)},       {"grad_norm", number(m.grad_norm)},
          {"lr", number(m.lr)},           {"tokens", m.tokens},
          {"step_ms", number(m.step_ms)}, {"comm_ms", number(m.comm_ms)},
          {"mfu", number(m.mfu)},         {"tokens_per_s", number(m.tokens_per_s)}};
}

/// {"tp": {"calls": 3, "sent": 4096}, ...}
Object traffic_json(const RankRecording& r) {
  std::map<std::string, std::pair<int64_t, int64_t>> sums;
  for (const StepCall& call : r.calls) {
    auto& [calls, sent] = sums[r.axes[static_cast<size_t>(call.axis)].name];
    ++calls;
    sent += call.sent;
  }
  Object all = Object::object();
  for (const auto& [axis, sum] : sums) {
    all[axis] = {{"calls", sum.first}, {"sent", sum.second}};
  }
  return all;
}

/// Seconds of a rank's thread in collectives and waits for them, on any axis.
double call_seconds(const RankRecording& r) {
  double sum = 0;
  for (const StepEvent& e : r.events) {
    if (e.call >= 0 && e.track == 0) sum += e.end_s - e.begin_s;
  }
  return sum;
}

/// [index of its name and shape, dim, ranges, elements, flat begin, flat end, gathered]
Object weights_json(const RankRecording& r, Numbering& weights) {
  Object all = Object::array();
  for (const WeightPart& w : r.weights) {
    const size_t index =
        weights.index(Object::array({r.names[static_cast<size_t>(w.name)], w.shape}));
    all.push_back(Object::array(
        {index, w.dim, w.ranges, w.numel, w.flat_begin, w.flat_end, w.is_gathered ? 1 : 0}));
  }
  return all;
}

/// The sample with the most bytes.
std::array<int64_t, kMemoryKinds.size()> peak_of(const RankRecording& r) {
  std::array<int64_t, kMemoryKinds.size()> peak{};
  int64_t most = -1;
  for (const MemorySample& sample : r.memory) {
    if (sample.total() > most) peak = sample.bytes;
    most = std::max(most, sample.total());
  }
  return peak;
}

Object forecast_json(const Replay& replay) {
  if (replay.forecast.empty()) return {};
  Object ranks = Object::array();
  for (const RankForecastNumbers& f : replay.forecast) {
    Object sent = Object::object();
    for (const auto& [axis, bytes] : f.sent) sent[axis] = bytes;
    ranks.push_back({{"memory", f.memory}, {"sent", sent}});
  }
  Object time = Object::object();
  for (const auto& [kind, seconds] : replay.forecast_time) time[kind] = seconds * 1e3;
  return {{"time_ms", time}, {"ranks", ranks}};
}

}  // namespace

int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

Object summary_json(const Replay& replay) {
  Object ranks = Object::array();
  Numbering weights;
  double comm_s = 0;
  const bool has_metric = std::isfinite(replay.metrics.comm_ms);
  for (size_t i = 0; i < replay.ranks.size(); ++i) {
    const RankRecording& r = replay.ranks[i];
    comm_s += has_metric ? comm_seconds(r) : call_seconds(r);
    ranks.push_back({{"rank", r.rank},
                     {"place", replay.places[i]},
                     {"host", r.host},
                     {"step_us", r.step_s * 1e6},
                     {"products_us", r.products_s * 1e6},
                     {"attention_us", r.attention_s * 1e6},
                     {"left_out", r.num_left_out},
                     {"traffic", traffic_json(r)},
                     {"peak", peak_of(r)},
                     {"weights", weights_json(r, weights)}});
  }
  return {{"title", replay.title},
          {"step", replay.metrics.step},
          {"cores", replay.num_cores},
          {"metrics", metrics_json(replay.metrics)},
          {"comm_ms", comm_s * 1e3 / static_cast<double>(replay.ranks.size())},
          {"forecast", forecast_json(replay)},
          {"memory_kinds", kMemoryKinds},
          {"weights", weights.values()},
          {"ranks", ranks}};
}

}  // namespace cleave::inline report
