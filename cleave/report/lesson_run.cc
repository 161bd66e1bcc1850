#include "cleave/report/lesson_run.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/report/record.h"
#include "cleave/report/replay.h"
#include "cleave/text/json.h"

namespace cleave::inline report {
namespace {

/// An event that has begun.
struct OpenEvent {
  std::string kind;
  double cpu_us = 0;  // without collectives inside
  size_t action = SIZE_MAX;
};

bool is_layer(const OpenEvent& e) {
  return e.kind == "forward" || e.kind == "recompute" || e.kind == "backward";
}

/// Reads the number that follows `words` in a name. Returns whether there is one.
bool number_after(std::string_view words, const std::string& name, int& number) {
  const size_t at = name.find(words);
  if (at == std::string::npos) return false;
  const char* begin = name.data() + at + words.size();
  return std::from_chars(begin, name.data() + name.size(), number).ec == std::errc();
}

/// Reads the events of a rank's thread, in order.
class ThreadReader {
 public:
  explicit ThreadReader(LessonRank& rank) : rank_(rank) {}

  void begin(const Json& event) {
    const Json args = event.at("args");
    OpenEvent e{.kind = event.string_or("cat", ""), .cpu_us = args.number_or("cpu_us", 0)};
    const std::string& name = event.at("name").as_string();
    if (e.kind == "collective") {
      for (OpenEvent& outer : open_) outer.cpu_us -= e.cpu_us;
      add_call(args, name, std::any_of(open_.begin(), open_.end(), is_layer));
    }
    if (e.kind == "pipeline") begin_action(name, e);
    open_.push_back(std::move(e));
  }

  void end(const Json& event) {
    if (open_.empty()) event.fail("an end without a begin");
    const OpenEvent e = std::move(open_.back());
    open_.pop_back();
    if (e.action != SIZE_MAX) rank_.actions[e.action].cpu_s = e.cpu_us / 1e6;
    const bool is_outermost = std::none_of(open_.begin(), open_.end(), is_layer);
    if (is_layer(e) && is_outermost) rank_.layers_cpu_s += e.cpu_us / 1e6;
  }

  /// A collective of a helper thread.
  void add_helper(const Json& event) {
    if (event.string_or("cat", "") != "collective") return;
    add_call(event.at("args"), event.at("name").as_string(), /*is_in_layer=*/false);
  }

 private:
  void add_call(const Json& args, const std::string& name, bool is_in_layer) {
    rank_.calls.push_back({.op = args.string_or("op", ""),
                           .axis = args.string_or("axis", ""),
                           .site = name,
                           .is_in_layer = is_in_layer,
                           .sent = args.int_or("sent", 0, 0)});
  }

  void begin_action(const std::string& name, OpenEvent& e) {
    // "forward of micro-batch 2, stage 1"
    LessonAction action{.is_forward = name.starts_with("forward ")};
    if (!number_after("micro-batch ", name, action.micro_batch) ||
        !number_after("stage ", name, action.stage)) {
      return;
    }
    e.action = rank_.actions.size();
    rank_.actions.push_back(action);
  }

  LessonRank& rank_;
  std::vector<OpenEvent> open_;
};

void add_memory(const RankMemory& memory, LessonRank& rank) {
  for (const auto& [kind, bytes] : memory.bytes) {
    rank.peak += bytes;
    if (kind == "weights") rank.weights = bytes;
    if (kind == "gradients") rank.gradients = bytes;
    if (kind == "optimizer") rank.moments = bytes;
  }
}

}  // namespace

LessonRun read_lesson_run(const std::string& folder) {
  const Json trace = Json::parse_file((std::filesystem::path(folder) / kReplayTraceName).string());
  LessonRun run;
  run.ranks.resize(trace.at("otherData").at("replay").at("ranks").size());
  std::vector<ThreadReader> readers(run.ranks.begin(), run.ranks.end());
  const Json events = trace.at("traceEvents");
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = events.at(i);
    const std::string& phase = event.at("ph").as_string();
    const auto rank =
        static_cast<size_t>(event.at("pid").as_int(0, static_cast<int64_t>(run.ranks.size()) - 1));
    if (phase == "M") continue;
    if (phase == "C") {
      const int64_t bytes = event.at("args").int_or("gathered weights", 0);
      run.ranks[rank].gathered = std::max(run.ranks[rank].gathered, bytes);
      continue;
    }
    const bool is_own_thread = event.at("tid").as_int() == 0;
    if (phase == "E" && is_own_thread) readers[rank].end(event);
    if (phase == "B" && is_own_thread) readers[rank].begin(event);
    if (phase == "B" && !is_own_thread) readers[rank].add_helper(event);
  }
  const std::vector<RankMemory> memory = read_record(folder).memory;
  for (size_t r = 0; r < std::min(memory.size(), run.ranks.size()); ++r) {
    add_memory(memory[r], run.ranks[r]);
  }
  return run;
}

double bubble_of(const std::vector<LessonRank>& ranks) {
  const int num_stages = static_cast<int>(ranks.size());
  std::map<std::pair<int, int>, double> forward_ends, backward_ends;  // by stage, micro-batch
  std::vector<size_t> next(ranks.size());
  std::vector<double> free_at(ranks.size());
  double work = 0;
  size_t num_left = 0;
  for (const LessonRank& rank : ranks) num_left += rank.actions.size();
  while (num_left > 0) {
    const size_t before = num_left;
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (; next[r] < ranks[r].actions.size(); ++next[r], --num_left) {
        const LessonAction& a = ranks[r].actions[next[r]];
        auto& ends = a.is_forward ? forward_ends : backward_ends;
        const int input_stage = a.is_forward ? a.stage - 1 : a.stage + 1;
        const bool has_input = input_stage >= 0 && input_stage < num_stages;
        const auto input = ends.find({input_stage, a.micro_batch});
        if (has_input && input == ends.end()) break;
        const double begin = has_input ? std::max(free_at[r], input->second) : free_at[r];
        free_at[r] = ends[{a.stage, a.micro_batch}] = begin + a.cpu_s;
        work += a.cpu_s;
      }
    }
    CLEAVE_CHECK(num_left < before, Code::kFormat,
                 "the recorded actions of the pipeline wait for each other");
  }
  const double each = work / static_cast<double>(ranks.size());
  return (*std::max_element(free_at.begin(), free_at.end()) - each) / each;
}

int most_in_flight(const LessonRank& rank) {
  int now = 0, most = 0;
  for (const LessonAction& action : rank.actions) {
    now += action.is_forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace cleave::inline report
