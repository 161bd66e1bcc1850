#include "cleave/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "cleave/base/error.h"

namespace cleave::inline pipeline {
namespace {

using Kind = Action::Kind;

constexpr std::array kNames{"gpipe", "1f1b", "interleaved", "zero-bubble"};

/// A rank's forwards or backwards of `count` micro-batches in groups of `group`: each group passes
/// all of the rank's stages before the next one starts.
std::vector<Action> grouped(const ScheduleShape& shape, int rank, Kind kind, int count, int group) {
  std::vector<Action> out;
  for (int first = 0; first < count; first += group) {
    for (int i = 0; i < shape.stages_per_rank; ++i) {
      const int chunk = kind == Kind::kForward ? i : shape.stages_per_rank - 1 - i;
      for (int m = first; m < std::min(first + group, count); ++m) {
        out.push_back({.kind = kind, .stage = chunk * shape.num_ranks + rank, .micro_batch = m});
      }
    }
  }
  return out;
}

/// `num_first` forwards, then alternately a forward and a backward, then the remaining backwards.
std::vector<Action> alternating(const std::vector<Action>& forwards,
                                const std::vector<Action>& backwards, size_t num_first) {
  std::vector<Action> out(forwards.begin(),
                          forwards.begin() + static_cast<std::ptrdiff_t>(num_first));
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (num_first + i < forwards.size()) out.push_back(forwards[num_first + i]);
    out.push_back(backwards[i]);
  }
  return out;
}

int num_first_forwards(const ScheduleShape& shape, int rank, int count) {
  const int all = count * shape.stages_per_rank;
  const int num_later_ranks = shape.num_ranks - rank - 1;
  if (shape.kind == ScheduleKind::kGpipe) return all;
  if (shape.stages_per_rank == 1) return std::min(num_later_ranks, all);
  if (count <= shape.num_ranks) return all;
  return std::min(2 * num_later_ranks + (shape.stages_per_rank - 1) * shape.num_ranks, all);
}

/// Forwards and backwards of every rank, without deferred weights.
Schedule with_whole_backwards(const ScheduleShape& shape) {
  Schedule schedule{.shape = shape, .ranks = {}};
  const int M = shape.num_micro_batches;
  const int S = shape.num_ranks;
  const bool in_groups = shape.kind != ScheduleKind::kGpipe && shape.stages_per_rank > 1;
  // A smaller last group could deadlock. An order without deadlock stays so if micro-batches are
  // left out, because no micro-batch waits for another one.
  const int count = in_groups ? (M + S - 1) / S * S : M;
  const int group = in_groups ? S : M;
  for (int rank = 0; rank < S; ++rank) {
    std::vector<Action> actions =
        alternating(grouped(shape, rank, Kind::kForward, count, group),
                    grouped(shape, rank, Kind::kBackward, count, group),
                    static_cast<size_t>(num_first_forwards(shape, rank, count)));
    std::erase_if(actions, [&](const Action& a) { return a.micro_batch >= M; });
    schedule.ranks.push_back(std::move(actions));
  }
  return schedule;
}

/// When the actions that are done ended, and when an action's inputs are ready.
class Progress {
 public:
  explicit Progress(const Schedule& schedule)
      : num_stages_(schedule.num_stages()),
        num_micro_batches_(schedule.shape.num_micro_batches),
        end_(static_cast<size_t>(3 * num_stages_ * num_micro_batches_), -1) {}

  [[nodiscard]] bool is_done(const Action& a) const { return end_[index(a)] >= 0; }
  void note(const Action& a, double end) { end_[index(a)] = end; }

  /// When all inputs of `a` are ready; below 0: not known yet.
  [[nodiscard]] double ready(const Action& a) const {
    const Action forward{.kind = Kind::kForward, .stage = a.stage, .micro_batch = a.micro_batch};
    if (a.kind == Kind::kForward) return a.stage == 0 ? 0 : end_[index(on_neighbor(a, -1))];
    if (a.kind == Kind::kWeight) {
      return end_[index({.kind = Kind::kBackward, .stage = a.stage, .micro_batch = a.micro_batch})];
    }
    const double own = end_[index(forward)];
    if (a.stage == num_stages_ - 1 || own < 0) return own;
    const double next = end_[index(on_neighbor(a, 1))];
    return next < 0 ? next : std::max(own, next);
  }

 private:
  static Action on_neighbor(const Action& a, int by) {
    return {.kind = a.kind, .stage = a.stage + by, .micro_batch = a.micro_batch};
  }
  [[nodiscard]] size_t index(const Action& a) const {
    const int64_t stage = int64_t{num_stages_} * static_cast<int>(a.kind) + a.stage;
    return static_cast<size_t>(stage * num_micro_batches_ + a.micro_batch);
  }
  int num_stages_, num_micro_batches_;
  std::vector<double> end_;
};

/// One rank's position in a schedule with deferred weights, advanced in steps of one unit.
struct RankCursor {
  const std::vector<Action>& planned;
  size_t next = 0;
  std::vector<Action> weights{};  // deferred: their backward is done
  size_t num_weights_done = 0;
  int num_live = 0;
  std::vector<Action> done{};

  /// Does the planned action at `time` if it is possible, else deferred weights, else nothing.
  /// Returns whether work is left.
  bool step(double time, int max_live, Progress& progress) {
    const bool has_planned = next < planned.size();
    const double ready = has_planned ? progress.ready(planned[next]) : -1;
    const bool is_full = has_planned && planned[next].kind == Kind::kForward &&
                         num_live == max_live && num_weights_done < weights.size();
    if (ready >= 0 && ready <= time && !is_full) {
      take(planned[next++], time, progress);
    } else if (num_weights_done < weights.size()) {
      take(weights[num_weights_done++], time, progress);
    }
    return next < planned.size() || num_weights_done < weights.size();
  }

 private:
  void take(const Action& a, double time, Progress& progress) {
    done.push_back(a);
    progress.note(a, time + 1);
    if (a.kind == Kind::kForward) ++num_live;
    if (a.kind == Kind::kWeight) --num_live;
    if (a.kind != Kind::kBackward) return;
    weights.push_back({.kind = Kind::kWeight, .stage = a.stage, .micro_batch = a.micro_batch});
  }
};

/// Moves the weights' part of every backward to where its rank would wait, or must free
/// activations.
Schedule with_deferred_weights(const Schedule& whole) {
  int max_live = 0;
  for (int rank = 0; rank < whole.shape.num_ranks; ++rank) {
    max_live = std::max(max_live, peak_live(whole, rank));
  }
  std::vector<RankCursor> ranks;
  for (const auto& planned : whole.ranks) ranks.push_back({.planned = planned});
  Progress progress(whole);
  bool is_working = true;
  for (double time = 0; is_working; ++time) {
    is_working = false;
    // Ends noted in this step are at time + 1, so the order of the ranks does not matter.
    for (RankCursor& rank : ranks) is_working |= rank.step(time, max_live, progress);
  }
  Schedule schedule{.shape = whole.shape, .ranks = {}};
  for (RankCursor& rank : ranks) schedule.ranks.push_back(std::move(rank.done));
  return schedule;
}

void check_shape(const ScheduleShape& shape) {
  CLEAVE_CHECK(shape.num_ranks >= 1 && shape.stages_per_rank >= 1 && shape.num_micro_batches >= 1,
               Code::kUsage, "a pipeline of ", shape.num_ranks, " ranks, ", shape.stages_per_rank,
               " stages a rank and ", shape.num_micro_batches,
               " micro-batches; each must be at least 1");
  CLEAVE_CHECK(shape.kind != ScheduleKind::k1F1B || shape.stages_per_rank == 1, Code::kUsage,
               "schedule 1f1b has one stage a rank, not ", shape.stages_per_rank,
               "; choose interleaved or zero-bubble for several");
}

void check_actions(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  std::vector<Action> seen;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    for (const Action& a : schedule.ranks[static_cast<size_t>(rank)]) {
      if (a.stage % shape.num_ranks != rank || a.stage >= schedule.num_stages() ||
          a.micro_batch < 0 || a.micro_batch >= shape.num_micro_batches) {
        CLEAVE_BUG("rank ", rank, " cannot do an action of its schedule: ", describe(a));
      }
      seen.push_back(a);
    }
  }
  const auto key = [](const Action& a) { return std::tuple(a.kind, a.stage, a.micro_batch); };
  std::sort(seen.begin(), seen.end(),
            [&](const Action& a, const Action& b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) CLEAVE_BUG("the ", describe(*twice), " is done twice");
  const auto all = static_cast<std::ptrdiff_t>(schedule.num_stages()) * shape.num_micro_batches;
  for (const Kind kind : {Kind::kForward, Kind::kBackward, Kind::kWeight}) {
    const auto count =
        std::count_if(seen.begin(), seen.end(), [&](const Action& a) { return a.kind == kind; });
    const bool may_lack = kind != Kind::kForward;
    if (count != all && !(may_lack && count == 0)) {
      CLEAVE_BUG("a schedule has ", count, " of ", all, " actions like the ",
                 describe({.kind = kind}));
    }
  }
}

}  // namespace

std::string_view name(ScheduleKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

ScheduleKind schedule_from_name(const std::string& name) {
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  CLEAVE_CHECK(found != kNames.end(), Code::kUsage, "pipeline schedule '", name,
               "' is unknown; choose gpipe, 1f1b, interleaved or zero-bubble");
  return static_cast<ScheduleKind>(found - kNames.begin());
}

std::string describe(const Action& action) {
  constexpr std::array kWhat{"forward", "backward", "weights' backward"};
  return str(kWhat[static_cast<size_t>(action.kind)], " of micro-batch ", action.micro_batch,
             " on stage ", action.stage);
}

bool Schedule::has(Action::Kind kind) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [&](const Action& a) { return a.kind == kind; });
  });
}

Schedule make_schedule(const ScheduleShape& shape) {
  check_shape(shape);
  Schedule schedule = with_whole_backwards(shape);
  check_schedule(schedule);
  if (shape.kind != ScheduleKind::kZeroBubble) return schedule;
  schedule = with_deferred_weights(schedule);
  check_schedule(schedule);
  return schedule;
}

Schedule make_forward_schedule(const ScheduleShape& shape) {
  CLEAVE_CHECK(shape.num_micro_batches >= 1, Code::kUsage, "an evaluation got ",
               shape.num_micro_batches, " micro-batches; give at least 1");
  Schedule schedule{.shape = shape, .ranks = {}};
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    schedule.ranks.push_back(
        grouped(shape, rank, Kind::kForward, shape.num_micro_batches, shape.num_ranks));
  }
  check_schedule(schedule);
  return schedule;
}

void check_schedule(const Schedule& schedule) {
  check_actions(schedule);
  timeline_of(schedule, [](const Action&) { return 1.0; });
}

int peak_live(const Schedule& schedule, int rank) {
  const Kind last = schedule.has(Kind::kWeight) ? Kind::kWeight : Kind::kBackward;
  int live = 0;
  int peak = 0;
  for (const Action& a : schedule.ranks[static_cast<size_t>(rank)]) {
    if (a.kind == Kind::kForward) peak = std::max(peak, ++live);
    if (a.kind == last) --live;
  }
  return peak;
}

ActionCost unit_cost(const Schedule& schedule) {
  const double backward = schedule.has(Kind::kWeight) ? 1 : 2;
  return [backward](const Action& a) { return a.kind == Kind::kBackward ? backward : 1; };
}

Timeline timeline_of(const Schedule& schedule, const ActionCost& cost) {
  const size_t num_ranks = schedule.ranks.size();
  Timeline timeline{.ranks = std::vector<std::vector<Timeline::Span>>(num_ranks)};
  Progress progress(schedule);
  std::vector<double> free(num_ranks);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      auto& spans = timeline.ranks[rank];
      const auto& actions = schedule.ranks[rank];
      while (spans.size() < actions.size()) {
        const Action& a = actions[spans.size()];
        const double ready = progress.ready(a);
        if (ready < 0) break;
        const double begin = std::max(free[rank], ready);
        free[rank] = begin + cost(a);
        progress.note(a, free[rank]);
        spans.push_back({.begin = begin, .end = free[rank]});
        moved = true;
      }
      timeline.end = std::max(timeline.end, free[rank]);
    }
  }
  std::string waiting;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const size_t done = timeline.ranks[rank].size();
    if (done == schedule.ranks[rank].size()) continue;
    waiting += str(waiting.empty() ? "" : ", ", "rank ", rank, " before the ",
                   describe(schedule.ranks[rank][done]));
  }
  if (!waiting.empty()) CLEAVE_BUG("the ranks of a pipeline wait for each other: ", waiting);
  return timeline;
}

double Timeline::idle_share() const {
  double busy = 0;
  for (const auto& spans : ranks) {
    for (const Span& span : spans) busy += span.end - span.begin;
  }
  const double all = end * static_cast<double>(ranks.size());
  return all > 0 ? 1 - busy / all : 0;
}

}  // namespace cleave::inline pipeline
