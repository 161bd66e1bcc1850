#include <algorithm>
#include <map>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/report/replay.h"
#include "cleave/report/replay_summary.h"
#include "cleave/report/replay_template.h"
#include "cleave/report/table.h"

namespace cleave::inline report {
namespace {

using Object = nlohmann::ordered_json;

constexpr size_t kMostPageBytes = 10'000'000;
constexpr size_t kMostPageEvents = 150'000;
constexpr size_t kMostPageSamples = 20'000;

/// The tables that the numbers of events refer to.
struct Tables {
  Numbering names, axes;
};

/// Sets "events", numbers in a row for each event: kind, name, track, begin after the previous
/// event's, duration, begin and duration in CPU time, waiting (all in nanoseconds), call or -1; and
/// "calls": [operation, axis, number, peer, bytes, sent] of each.
void add_events(const RankRecording& r, Tables& tables, Object& rank) {
  Object events = Object::array();
  Object calls = Object::array();
  std::map<int, int> shown;  // the page's number of a call
  int64_t previous = 0;
  for (const StepEvent& e : r.events) {
    const int64_t begin = nanoseconds(e.begin_s);
    int call = -1;
    if (e.call >= 0) {
      const auto [at, is_new] = shown.emplace(e.call, static_cast<int>(calls.size()));
      call = at->second;
      const StepCall& c = r.calls[static_cast<size_t>(e.call)];
      const RecordedAxis& axis = r.axes[static_cast<size_t>(c.axis)];
      if (is_new) {
        calls.push_back(Object::array({tables.names.index(c.op),
                                       tables.axes.index(Object::array({axis.name, axis.ranks})),
                                       c.number, c.peer, c.bytes, c.sent}));
      }
    }
    for (const int64_t value :
         {static_cast<int64_t>(e.kind),
          static_cast<int64_t>(tables.names.index(r.names[static_cast<size_t>(e.name)])),
          static_cast<int64_t>(e.track), begin - previous, nanoseconds(e.end_s) - begin,
          nanoseconds(e.cpu_begin_s), nanoseconds(e.cpu_s), nanoseconds(e.wait_s),
          static_cast<int64_t>(call)}) {
      events.push_back(value);
    }
    previous = begin;
  }
  rank["events"] = std::move(events);
  rank["calls"] = std::move(calls);
}

/// A flat list with the numbers of each sample: nanoseconds, then bytes by kind. If there are more
/// than `most` samples, each group of consecutive ones is replaced by its largest.
Object memory_json(const RankRecording& r, size_t most) {
  Object all = Object::array();
  const size_t each = std::max<size_t>(1, (r.memory.size() + most - 1) / most);
  for (size_t i = 0; i < r.memory.size(); i += each) {
    const auto begin = r.memory.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        r.memory.begin() + static_cast<std::ptrdiff_t>(std::min(i + each, r.memory.size()));
    const auto largest = std::max_element(
        begin, end, [](const auto& a, const auto& b) { return a.total() < b.total(); });
    all.push_back(nanoseconds(largest->at_s));
    for (const int64_t bytes : largest->bytes) all.push_back(bytes);
  }
  return all;
}

/// The page's data: `summary`, and the events of the shortened recordings `ranks`.
std::string data_json(const Object& summary, const std::vector<RankRecording>& ranks) {
  Object data = summary;
  Tables tables;
  const size_t most_samples = std::max<size_t>(100, kMostPageSamples / ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankRecording& r = ranks[i];
    Object& rank = data["ranks"][i];
    rank["left_out"] = r.num_left_out;
    add_events(r, tables, rank);
    rank["memory"] = memory_json(r, most_samples);
    rank["helpers"] = Object::array();
    for (const RecordedAxis& axis : r.axes) rank["helpers"].push_back(axis.name);
  }
  data["names"] = tables.names.values();
  data["axes"] = tables.axes.values();
  std::string text;
  // No '<' may end the script element.
  for (const char c : data.dump(-1, ' ', true, Object::error_handler_t::replace)) {
    c == '<' ? text += "\\u003c" : text += c;
  }
  return text;
}

std::string filled(std::string_view page, std::string_view place, std::string_view value) {
  const size_t at = page.find(place);
  if (at == std::string_view::npos) CLEAVE_BUG("the page has no ", place);
  std::string html(page.substr(0, at));
  return html.append(value).append(page.substr(at + place.size()));
}

}  // namespace

std::string replay_page(const Replay& replay) {
  const std::string title = escaped_html(replay.title);
  const Object summary = summary_json(replay);  // of all events, also those that are left out
  std::vector<RankRecording> ranks = replay.ranks;
  for (size_t most = kMostPageEvents;; most /= 2) {
    shorten(ranks, most);
    // The title comes last, so that it may contain the name of a place.
    const std::string page = filled(kReplayTemplate, "{{DATA}}", data_json(summary, ranks));
    std::string whole = filled(page, "{{TITLE}}", title);
    if (whole.size() <= kMostPageBytes || most == 0) return whole;
  }
}

}  // namespace cleave::inline report
