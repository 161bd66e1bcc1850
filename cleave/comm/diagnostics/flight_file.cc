#include "cleave/comm/diagnostics/flight_file.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cleave/base/dtype.h"
#include "cleave/comm/api/operation.h"
#include "cleave/comm/diagnostics/watchdog.h"
#include "cleave/file/file.h"
#include "cleave/text/json.h"

namespace cleave::inline comm {
namespace {

using Object = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;

std::string_view name(RankState state) {
  switch (state) {
    case RankState::kAbsent:
      return "absent";
    case RankState::kJoined:
      return "joined";
    case RankState::kLeft:
      return "left";
    case RankState::kUnwound:
      return "unwound";
  }
  return "unknown";
}

/// Numbers the axes of a log in the order in which operations first use them.
class AxisList {
 public:
  AxisList(const SharedSegment& segment, std::vector<FlightAxis>& axes)
      : segment_(segment), axes_(axes) {}

  uint32_t index_of(uint32_t group) {
    const auto [at, is_new] = known_.try_emplace(group, static_cast<uint32_t>(axes_.size()));
    if (is_new) {
      const GroupEntry& entry = segment_.group(group);
      const auto ranks = segment_.group_ranks(entry);
      axes_.push_back({.name = entry.name, .ranks = {ranks.begin(), ranks.end()}});
    }
    return at->second;
  }

 private:
  const SharedSegment& segment_;
  std::vector<FlightAxis>& axes_;
  std::map<uint32_t, uint32_t> known_;
};

/// Adds what one segment has of a rank: its operations and its wait.
void add_segment(const SharedSegment& segment, bool has_times, AxisList& axes, FlightRank& seen) {
  if (const auto wait = wait_of(segment, seen.rank); wait && seen.waits_for.empty()) {
    seen.waits_for = missing_ranks(segment, seen.rank, wait->first);
  }
  const RankSlot& slot = segment.rank(seen.rank);
  const uint64_t end = slot.num_operations.load(std::memory_order_acquire);
  seen.num_operations += end;
  for (uint64_t n = end - std::min<uint64_t>(end, kFlightLogLength); n < end; ++n) {
    FlightRecord record = log_read(slot, n);
    if (record.op == Op::kNone) continue;  // of another host, not in its snapshots
    if (!has_dtype(record.dtype)) record.dtype = static_cast<uint8_t>(DType::kU8);
    record.group = axes.index_of(record.group);
    if (!has_times) record.begin_ns = record.end_ns = 0;
    seen.operations.push_back(std::move(record));
  }
}

/// Makes one list of the operations of two segments.
void sort_by_time(FlightRank& seen) {
  std::stable_sort(
      seen.operations.begin(), seen.operations.end(),
      [](const FlightRecord& a, const FlightRecord& b) { return a.begin_ns < b.begin_ns; });
  uint64_t number = seen.num_operations - seen.operations.size();
  for (FlightRecord& record : seen.operations) record.number = number++;
}

std::string to_text(const FlightLog& log) {
  std::string text =
      "{\"flight_log\":" + str(kFormatVersion) +
      ",\n\"why\":" + Object(log.why).dump(-1, ' ', true, Object::error_handler_t::replace) +
      str(",\n\"written_by\":", log.written_by, ",\n\"now_ns\":", log.now_ns) + ",\n\"axes\":[";
  const char* before = "\n";
  for (const FlightAxis& axis : log.axes) {
    text += std::exchange(before, ",\n") + Object{{"name", axis.name}, {"ranks", axis.ranks}}.dump(
                                               -1, ' ', true, Object::error_handler_t::replace);
  }
  text += "],\n\"ranks\":[";
  before = "\n";
  for (const FlightRank& rank : log.ranks) {
    text += std::exchange(before, ",\n") +
            str("{\"rank\":", rank.rank, ",\"pid\":", rank.pid, ",\"step\":", rank.step,
                ",\"state\":\"", rank.state, "\",\"num_operations\":", rank.num_operations,
                ",\"waits_for\":", Object(rank.waits_for).dump(), ",\"operations\":[");
    const char* between = "\n";
    for (const FlightRecord& record : rank.operations) {
      const Object row = {{"number", record.number},
                          {"op", cleave::name(record.op)},
                          {"sequence", record.sequence},
                          {"axis", record.group},
                          {"dtype", cleave::name(static_cast<DType>(record.dtype))},
                          {"count", record.count},
                          {"begin_ns", record.begin_ns},
                          {"end_ns", record.is_done ? Object(record.end_ns) : Object()},
                          {"site", record.site}};
      text +=
          std::exchange(between, ",\n") + row.dump(-1, ' ', true, Object::error_handler_t::replace);
    }
    text += "]}";
  }
  return text + "]}\n";
}

template <class Value>
Value unsigned_at(const Json& object, std::string_view key, int64_t high = INT64_MAX) {
  return static_cast<Value>(object.at(key).as_int(0, high));
}

std::vector<int> ranks_at(const Json& object, std::string_view key) {
  const Json list = object.at(key);
  std::vector<int> ranks;
  for (size_t i = 0; i < list.size(); ++i) {
    ranks.push_back(static_cast<int>(list.at(i).as_int(0, kMaxJobRanks - 1)));
  }
  return ranks;
}

Op op_of(const Json& text) {
  for (int value = 0; value <= static_cast<int>(Op::kRecv); ++value) {
    if (name(static_cast<Op>(value)) == text.as_string()) return static_cast<Op>(value);
  }
  text.fail("expected the name of an operation");
}

FlightRecord record_of(const Json& row, size_t num_axes) {
  FlightRecord record;
  record.number = unsigned_at<uint64_t>(row, "number");
  record.op = op_of(row.at("op"));
  record.sequence = unsigned_at<uint64_t>(row, "sequence");
  record.group = unsigned_at<uint32_t>(row, "axis", static_cast<int64_t>(num_axes) - 1);
  const auto dtype = dtype_from_name(row.at("dtype").as_string());
  if (!dtype) row.at("dtype").fail("expected the name of a dtype");
  record.dtype = static_cast<uint8_t>(*dtype);
  record.count = unsigned_at<uint64_t>(row, "count");
  record.begin_ns = unsigned_at<uint64_t>(row, "begin_ns");
  record.is_done = row.has("end_ns");
  if (record.is_done) record.end_ns = unsigned_at<uint64_t>(row, "end_ns");
  record.site = row.at("site").as_string();
  return record;
}

FlightRank rank_of(const Json& row, size_t num_axes) {
  FlightRank rank{.rank = unsigned_at<int>(row, "rank", kMaxJobRanks - 1),
                  .pid = unsigned_at<int>(row, "pid", INT32_MAX),
                  .step = row.at("step").as_int(-1),
                  .state = row.at("state").as_string(),
                  .num_operations = unsigned_at<uint64_t>(row, "num_operations"),
                  .waits_for = ranks_at(row, "waits_for"),
                  .operations = {}};
  const Json list = row.at("operations");
  for (size_t i = 0; i < list.size(); ++i) {
    rank.operations.push_back(record_of(list.at(i), num_axes));
  }
  return rank;
}

}  // namespace

FlightLog take_flight_log(const SharedSegment& segment, int rank, std::string_view why,
                          const SharedSegment* beside) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  FlightLog log{.why = std::string(why),
                .written_by = rank,
                .now_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now).count()),
                .axes = {},
                .ranks = {}};
  AxisList axes(segment, log.axes), axes_beside(beside == nullptr ? segment : *beside, log.axes);
  for (int r = 0; r < segment.num_ranks(); ++r) {
    const bool is_only_beside =
        beside != nullptr && segment.rank(r).state.load() == RankState::kAbsent;
    const RankSlot& slot = is_only_beside ? beside->rank(r) : segment.rank(r);
    FlightRank seen{.rank = r,
                    .pid = slot.pid.load(),
                    .step = slot.step.load(),
                    .state = std::string(name(slot.state.load())),
                    .num_operations = 0,
                    .waits_for = {},
                    .operations = {}};
    const auto has_times = [&](const SharedSegment& part, const SharedSegment* other) {
      return r == rank || !part.is_replica() || (other != nullptr && other->has_rank(r));
    };
    add_segment(segment, has_times(segment, beside), axes, seen);
    if (beside != nullptr) {
      add_segment(*beside, has_times(*beside, &segment), axes_beside, seen);
      sort_by_time(seen);
    }
    log.ranks.push_back(std::move(seen));
  }
  return log;
}

std::string write_flight_log(const SharedSegment& segment, int rank, std::string_view folder,
                             std::string_view why, const SharedSegment* beside) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::string path = str(folder, "/flight_log.", now_ms, ".rank", rank, ".json");
  const std::string text = to_text(take_flight_log(segment, rank, why, beside));
  File file = File::create(path, 0600);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.close();
  return path;
}

std::string temporary_flight_logs() {
  const char* folder = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return folder == nullptr || *folder == '\0' ? "/tmp" : folder;
}

FlightLog read_flight_log(const std::string& path) {
  const Json json = parsed_as("a flight log is a JSON file that a rank has written",
                              [&] { return Json::parse_file(path); });
  (void)json.at("flight_log").as_int(kFormatVersion, kFormatVersion);  // rejects other versions
  FlightLog log{.why = json.at("why").as_string(),
                .written_by = unsigned_at<int>(json, "written_by", kMaxJobRanks - 1),
                .now_ns = unsigned_at<uint64_t>(json, "now_ns"),
                .axes = {},
                .ranks = {}};
  const Json axes = json.at("axes"), ranks = json.at("ranks");
  for (size_t i = 0; i < axes.size(); ++i) {
    log.axes.push_back(
        {.name = axes.at(i).at("name").as_string(), .ranks = ranks_at(axes.at(i), "ranks")});
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    log.ranks.push_back(rank_of(ranks.at(i), log.axes.size()));
    if (log.ranks.back().rank != static_cast<int>(i)) {
      ranks.at(i).at("rank").fail(str("expected ", i, ", because ranks are listed in order"));
    }
  }
  return log;
}

std::vector<int> stuck_ranks(const FlightLog& log) {
  std::vector<bool> is_awaited(log.ranks.size());
  for (const FlightRank& rank : log.ranks) {
    for (const int other : rank.waits_for) {
      if (static_cast<size_t>(other) < is_awaited.size()) {
        is_awaited[static_cast<size_t>(other)] = true;
      }
    }
  }
  std::vector<int> stuck;
  for (const FlightRank& rank : log.ranks) {
    if (is_awaited[static_cast<size_t>(rank.rank)] && rank.waits_for.empty()) {
      stuck.push_back(rank.rank);
    }
  }
  return stuck;
}

std::string describe_place(const FlightLog& log, const FlightRank& rank) {
  if (rank.operations.empty()) {
    if (rank.num_operations != 0) return "not known";
    return rank.state == "absent" ? "not yet there" : "before its first operation";
  }
  const FlightRecord& last = rank.operations.back();
  return str(last.is_done ? "after " : "in ", describe(last, log.axes[last.group].name));
}

}  // namespace cleave::inline comm
