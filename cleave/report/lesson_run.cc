#include "cleave/report/lesson_run.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
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

/// Runs the actions of a pipeline's ranks, each on a core of its own.
class PipelineReplay {
 public:
  explicit PipelineReplay(const std::vector<LessonRank>& ranks)
      : ranks_(ranks), next_(ranks.size()), free_at_(ranks.size()) {}

  /// Runs the next action of a rank if it has one and its input has arrived.
  bool run_next(size_t rank) {
    const std::vector<LessonAction>& actions = ranks_[rank].actions;
    if (next_[rank] == actions.size()) return false;
    const LessonAction& a = actions[next_[rank]];
    const std::optional<double> input = input_of(a);
    if (!input) return false;
    ++next_[rank];
    free_at_[rank] = std::max(free_at_[rank], *input) + a.cpu_s;
    ends_[{a.is_forward, a.stage, a.micro_batch}] = free_at_[rank];
    work_s_ += a.cpu_s;
    return true;
  }

  /// The waiting until the last rank ends, as a share of the work.
  [[nodiscard]] double bubble() const {
    const double each = work_s_ / static_cast<double>(ranks_.size());
    return (*std::max_element(free_at_.begin(), free_at_.end()) - each) / each;
  }

 private:
  /// When the input of an action arrives: 0 if it needs none, nothing while it is not computed.
  [[nodiscard]] std::optional<double> input_of(const LessonAction& a) const {
    const int stage = a.is_forward ? a.stage - 1 : a.stage + 1;
    if (stage < 0 || stage == static_cast<int>(ranks_.size())) return 0;
    const auto end = ends_.find({a.is_forward, stage, a.micro_batch});
    return end == ends_.end() ? std::nullopt : std::optional(end->second);
  }

  const std::vector<LessonRank>& ranks_;
  std::vector<size_t> next_;
  std::vector<double> free_at_;
  std::map<std::tuple<bool, int, int>, double> ends_;  // of forward or backward, stage, micro-batch
  double work_s_ = 0;
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
  PipelineReplay replay(ranks);
  size_t num_left = 0;
  for (const LessonRank& rank : ranks) num_left += rank.actions.size();
  while (num_left > 0) {
    size_t num_run = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      while (replay.run_next(r)) ++num_run;
    }
    CLEAVE_CHECK(num_run > 0, Code::kFormat,
                 "the recorded actions of the pipeline wait for each other");
    num_left -= num_run;
  }
  return replay.bubble();
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
