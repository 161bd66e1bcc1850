#include <algorithm>
#include <map>

#include "cleave/report/replay.h"
#include "cleave/report/replay_summary.h"

namespace cleave::inline report {
namespace {

using Object = nlohmann::ordered_json;

/// More would take gigabytes of memory while the file is written.
constexpr size_t kMostTraceEvents = 400'000;

/// Events of one thread as JSON without a time, and their times in nanoseconds.
using Timed = std::vector<std::pair<int64_t, std::string>>;

std::string text_of(const Object& json) {
  return json.dump(-1, ' ', true, Object::error_handler_t::replace);
}

/// One rank's event of a collective or message.
struct Member {
  size_t rank;
  const StepEvent* event;
  const StepCall* call;
};

Object event_json(const char* phase, int rank, int track) {
  return {{"ph", phase}, {"pid", rank}, {"tid", track}};
}

Object args_of(const RankRecording& r, const StepEvent& e) {
  Object args = {{"cpu_begin_us", e.cpu_begin_s * 1e6}, {"cpu_us", e.cpu_s * 1e6}};
  if (e.wait_s > 0) args["wait_us"] = e.wait_s * 1e6;
  if (e.call < 0) return args;
  const StepCall& c = r.calls[static_cast<size_t>(e.call)];
  const RecordedAxis& axis = r.axes[static_cast<size_t>(c.axis)];
  args["op"] = c.op;
  args["axis"] = axis.name;
  args["ranks"] = axis.ranks;
  args["number"] = c.number;
  if (c.peer >= 0) args["peer"] = c.peer;
  args["bytes"] = c.bytes;
  args["sent"] = c.sent;
  return args;
}

/// B and E pairs of each track, nested.
std::map<int, Timed> slices_of(const RankRecording& r) {
  std::map<int, Timed> tracks;
  std::map<int, std::vector<int64_t>> open;  // ends, in nanoseconds
  const auto close = [&](int track, int64_t until) {
    for (auto& ends = open[track]; !ends.empty() && ends.back() <= until; ends.pop_back()) {
      tracks[track].emplace_back(ends.back(), text_of(event_json("E", r.rank, track)));
    }
  };
  for (const StepEvent& e : r.events) {
    const int64_t begin = nanoseconds(e.begin_s);
    close(e.track, begin);
    auto& ends = open[e.track];
    int64_t end = std::max(begin, nanoseconds(e.end_s));
    if (!ends.empty()) end = std::min(end, ends.back());
    Object json = event_json("B", r.rank, e.track);
    json["name"] = r.names[static_cast<size_t>(e.name)];
    json["cat"] = name(e.kind);
    json["args"] = args_of(r, e);
    tracks[e.track].emplace_back(begin, text_of(json));
    ends.push_back(end);
  }
  for (const auto& [track, ends] : open) close(track, INT64_MAX);
  return tracks;
}

/// The events of all ranks by collective call, or by message: those of one call are a list. The
/// rule is that of set_waiting().
std::vector<std::vector<Member>> events_by_call(const std::vector<RankRecording>& ranks) {
  std::map<std::string, std::vector<Member>> all;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankRecording& r = ranks[i];
    for (const StepEvent& e : r.events) {
      if (e.kind != EventKind::kCollective || e.call < 0) continue;
      const StepCall& c = r.calls[static_cast<size_t>(e.call)];
      const RecordedAxis& axis = r.axes[static_cast<size_t>(c.axis)];
      Object key = Object::array({axis.name, axis.ranks, c.number});
      if (c.peer >= 0) {
        const int peer = axis.ranks[static_cast<size_t>(c.peer)];
        key.push_back(c.op == "send" ? r.rank : peer);
        key.push_back(c.op == "send" ? peer : r.rank);
      }
      all[key.dump()].push_back({.rank = i, .event = &e, .call = &c});
    }
  }
  std::vector<std::vector<Member>> out;
  out.reserve(all.size());
  for (auto& [key, members] : all) out.push_back(std::move(members));
  return out;
}

/// The member that the others wait for: the sender, or the one that began last.
size_t last_of(const std::vector<Member>& members) {
  size_t last = 0;
  for (size_t i = 1; i < members.size(); ++i) {
    const bool is_send = members[i].call->op == "send";
    const bool is_later = members[i].event->begin_s > members[last].event->begin_s;
    if (is_send || (is_later && members[last].call->op != "send")) last = i;
  }
  return last;
}

void add_flows(const std::vector<RankRecording>& ranks, std::vector<std::map<int, Timed>>& timed) {
  int64_t id = 0;
  for (const std::vector<Member>& members : events_by_call(ranks)) {
    const Member& from = members[last_of(members)];
    const int64_t begin = nanoseconds(from.event->begin_s);
    for (const Member& to : members) {
      if (to.rank == from.rank) continue;
      ++id;
      const auto add = [&](const char* phase, const Member& member, int64_t at) {
        const int track = member.event->track;
        Object json = event_json(phase, ranks[member.rank].rank, track);
        json["id"] = id;
        json["name"] = from.call->op;
        json["cat"] = "flow";
        if (phase[0] == 'f') json["bp"] = "e";
        timed[member.rank][track].emplace_back(at, text_of(json));
      };
      add("s", from, begin);
      const int64_t end = nanoseconds(to.event->end_s);
      add("f", to, std::max(begin, std::min(end, std::max(begin, nanoseconds(to.event->begin_s)))));
    }
  }
}

void add(const std::string& event, std::string& out) {
  if (out.back() != '[') out += ",\n";
  out += event;
}

/// Adds an event at a time, in microseconds in the file.
void add_at(int64_t nanoseconds, std::string event, std::string& out) {
  event.pop_back();  // the closing brace
  add(event + ",\"ts\":" + Object(static_cast<double>(nanoseconds) / 1e3).dump() + "}", out);
}

void add_names(const RankRecording& r, const std::string& place, std::string& out) {
  Object process = event_json("M", r.rank, 0);
  process["name"] = "process_name";
  process["args"] = {{"name", place}};
  add(text_of(process), out);
  for (size_t track = 0; track <= r.axes.size(); ++track) {
    Object thread = event_json("M", r.rank, static_cast<int>(track));
    thread["name"] = "thread_name";
    thread["args"] = {{"name", track == 0 ? "rank" : "helper of " + r.axes[track - 1].name}};
    add(text_of(thread), out);
  }
}

void add_memory(const RankRecording& r, std::string& out) {
  for (const MemorySample& sample : r.memory) {
    Object json = event_json("C", r.rank, 0);
    json["name"] = "memory";
    for (size_t k = 0; k < kMemoryKinds.size(); ++k) {
      json["args"][std::string(kMemoryKinds[k])] = sample.bytes[k];
    }
    add_at(nanoseconds(sample.at_s), text_of(json), out);
  }
}

}  // namespace

std::string chrome_trace(const Replay& replay) {
  std::vector<RankRecording> ranks = replay.ranks;
  shorten(ranks, kMostTraceEvents);
  std::vector<std::map<int, Timed>> timed;
  timed.reserve(ranks.size());
  for (const RankRecording& r : ranks) timed.push_back(slices_of(r));
  add_flows(ranks, timed);
  Object summary = summary_json(replay);  // of all events, also those that are left out
  for (size_t i = 0; i < ranks.size(); ++i) {
    summary["ranks"][i]["left_out"] = ranks[i].num_left_out;
  }
  std::string out = "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"replay\":" + text_of(summary) +
                    "},\n\"traceEvents\":[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    add_names(ranks[i], replay.places[i], out);
    for (auto& [track, list] : timed[i]) {
      std::stable_sort(list.begin(), list.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (auto& [at, event] : list) add_at(at, std::move(event), out);
    }
    add_memory(ranks[i], out);
  }
  return out + "]}\n";
}

}  // namespace cleave::inline report
