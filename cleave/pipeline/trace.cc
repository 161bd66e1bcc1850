#include "cleave/pipeline/trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

namespace cleave::inline pipeline {
namespace {

constexpr int64_t kNumWords = 6;

}  // namespace

Trace gather_trace(const std::vector<TraceEvent>& own, const Axis& pp) {
  const auto count = static_cast<int64_t>(own.size());
  const Tensor mine = at::empty({count, kNumWords}, at::kDouble);
  auto* words = mine.mutable_data_ptr<double>();
  for (const TraceEvent& e : own) {
    *words++ = static_cast<double>(e.action.kind);
    *words++ = e.action.stage;
    *words++ = e.action.micro_batch;
    *words++ = e.begin_s;
    *words++ = e.end_s;
    *words++ = e.cpu_s;
  }
  // Every rank has the same number of stages, and so of events.
  const std::vector<int64_t> widths(static_cast<size_t>(pp.size()), count);
  const Tensor all = pp.all_gather(mine, 0, widths, "trace of a pipeline");
  const auto* from = all.const_data_ptr<double>();
  Trace trace(static_cast<size_t>(pp.size()));
  for (auto& events : trace) {
    for (int64_t i = 0; i < count; ++i, from += kNumWords) {
      events.push_back({.action = {.kind = static_cast<Action::Kind>(from[0]),
                                   .stage = static_cast<int>(from[1]),
                                   .micro_batch = static_cast<int>(from[2])},
                        .begin_s = from[3],
                        .end_s = from[4],
                        .cpu_s = from[5]});
    }
  }
  return trace;
}

std::string chrome_trace(const Trace& trace) {
  constexpr std::array kSteps{"ForwardStep", "BackwardStep", "WeightStep"};
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < trace.size(); ++rank) {
    for (const TraceEvent& e : trace[rank]) {
      const std::string name =
          str("mb_", e.action.micro_batch, "_", kSteps[static_cast<size_t>(e.action.kind)]);
      for (const bool begins : {true, false}) {
        events.push_back({{"name", name},
                          {"ph", begins ? "B" : "E"},
                          {"ts", (begins ? e.begin_s : e.end_s) * 1e6},
                          {"pid", rank},
                          {"tid", 0},
                          {"args", {{"stage", e.action.stage}}}});
      }
    }
  }
  return events.dump(1) + "\n";
}

double idle_share(const Trace& trace) {
  double begin = 0, end = 0, busy = 0;
  bool is_first = true;
  for (const auto& events : trace) {
    for (const TraceEvent& e : events) {
      begin = is_first ? e.begin_s : std::min(begin, e.begin_s);
      end = is_first ? e.end_s : std::max(end, e.end_s);
      busy += e.end_s - e.begin_s;
      is_first = false;
    }
  }
  const double all = (end - begin) * static_cast<double>(trace.size());
  return all > 0 ? 1 - busy / all : 0;
}

}  // namespace cleave::inline pipeline
