#include "cleave/report/step_events.h"

#include <nlohmann/json.hpp>

#include "cleave/base/error.h"

namespace cleave::inline report {
namespace {

using Object = nlohmann::ordered_json;

Object axes_json(const RankRecording& r) {
  Object all = Object::array();
  for (const RecordedAxis& a : r.axes) all.push_back({a.name, a.ranks});
  return all;
}

Object calls_json(const RankRecording& r) {
  Object all = Object::array();
  for (const StepCall& c : r.calls) {
    all.push_back(Object::array({c.op, c.axis, c.number, c.peer, c.bytes, c.sent}));
  }
  return all;
}

Object events_json(const RankRecording& r) {
  Object all = Object::array();
  for (const StepEvent& e : r.events) {
    all.push_back(Object::array({static_cast<int>(e.kind), e.name, e.track, e.begin_s, e.end_s,
                                 e.cpu_begin_s, e.cpu_s, e.call}));
  }
  return all;
}

Object memory_json(const RankRecording& r) {
  Object all = Object::array();
  for (const MemorySample& m : r.memory) all.push_back(Object::array({m.at_s, m.bytes}));
  return all;
}

Object weights_json(const RankRecording& r) {
  Object all = Object::array();
  for (const WeightPart& w : r.weights) {
    all.push_back(Object::array(
        {w.name, w.shape, w.dim, w.ranges, w.numel, w.flat_begin, w.flat_end, w.is_gathered}));
  }
  return all;
}

void read_lists(const Object& from, RankRecording& r) {
  for (const Object& a : from.at("axes")) {
    r.axes.push_back(
        {.name = a.at(0).get<std::string>(), .ranks = a.at(1).get<std::vector<int>>()});
  }
  for (const Object& c : from.at("calls")) {
    r.calls.push_back({.op = c.at(0).get<std::string>(),
                       .axis = c.at(1).get<int>(),
                       .number = c.at(2).get<int64_t>(),
                       .peer = c.at(3).get<int>(),
                       .bytes = c.at(4).get<int64_t>(),
                       .sent = c.at(5).get<int64_t>()});
  }
  for (const Object& e : from.at("events")) {
    r.events.push_back({.kind = static_cast<EventKind>(e.at(0).get<int>()),
                        .name = e.at(1).get<int>(),
                        .track = e.at(2).get<int>(),
                        .begin_s = e.at(3).get<double>(),
                        .end_s = e.at(4).get<double>(),
                        .cpu_begin_s = e.at(5).get<double>(),
                        .cpu_s = e.at(6).get<double>(),
                        .call = e.at(7).get<int>()});
  }
  for (const Object& m : from.at("memory")) {
    r.memory.push_back({.at_s = m.at(0).get<double>(),
                        .bytes = m.at(1).get<std::array<int64_t, kMemoryKinds.size()>>()});
  }
  for (const Object& w : from.at("weights")) {
    r.weights.push_back({.name = w.at(0).get<int>(),
                         .shape = w.at(1).get<std::vector<int64_t>>(),
                         .dim = w.at(2).get<int64_t>(),
                         .ranges = w.at(3).get<std::vector<std::array<int64_t, 2>>>(),
                         .numel = w.at(4).get<int64_t>(),
                         .flat_begin = w.at(5).get<int64_t>(),
                         .flat_end = w.at(6).get<int64_t>(),
                         .is_gathered = w.at(7).get<bool>()});
  }
}

}  // namespace

std::string_view name(EventKind kind) {
  constexpr std::array<std::string_view, kNumEventKinds> kNames{
      "phase", "pipeline", "forward", "recompute", "backward", "optimizer", "collective", "wait"};
  return kNames[static_cast<size_t>(kind)];
}

std::string json_of(const RankRecording& r) {
  const Object all = {{"rank", r.rank},
                      {"host", r.host},
                      {"aligned_s", r.aligned_s},
                      {"step_s", r.step_s},
                      {"comm_end_s", r.comm_end_s},
                      {"products_s", r.products_s},
                      {"attention_s", r.attention_s},
                      {"names", r.names},
                      {"axes", axes_json(r)},
                      {"calls", calls_json(r)},
                      {"events", events_json(r)},
                      {"memory", memory_json(r)},
                      {"weights", weights_json(r)},
                      {"num_left_out", r.num_left_out}};
  return all.dump(-1, ' ', true, Object::error_handler_t::replace);
}

RankRecording recording_of(const std::string& json) {
  try {
    const Object from = Object::parse(json);
    RankRecording r{.rank = from.at("rank").get<int>(),
                    .host = from.at("host").get<std::string>(),
                    .aligned_s = from.at("aligned_s").get<double>(),
                    .step_s = from.at("step_s").get<double>(),
                    .comm_end_s = from.at("comm_end_s").get<double>(),
                    .products_s = from.at("products_s").get<double>(),
                    .attention_s = from.at("attention_s").get<double>(),
                    .names = from.at("names").get<std::vector<std::string>>()};
    read_lists(from, r);
    r.num_left_out = from.at("num_left_out").get<int64_t>();
    return r;
  } catch (const nlohmann::json::exception& problem) {
    throw Error(Code::kFormat, str("the recording of a step: ", problem.what()));
  }
}

double comm_seconds(const RankRecording& r) {
  double sum = 0;
  for (const StepEvent& e : r.events) {
    if (e.call < 0 || e.track != 0 || e.begin_s >= r.comm_end_s) continue;
    const std::string& axis =
        r.axes[static_cast<size_t>(r.calls[static_cast<size_t>(e.call)].axis)].name;
    const bool counts =
        axis == "tp" || axis == "pp" || axis == "dp" || axis == "ep" || axis == "copies of experts";
    if (counts) sum += e.end_s - e.begin_s;
  }
  return sum;
}

}  // namespace cleave::inline report
