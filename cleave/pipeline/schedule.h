#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline pipeline {

/// The order of each rank's forwards and backwards. S ranks, V stages a rank, M micro-batches.
///
/// - gpipe: all forwards, then all backwards. Holds the activations of all M.
/// - 1f1b: min(S-s-1, M) forwards on rank s, then alternately one forward and one backward; V is 1.
///   Holds at most S-s micro-batches.
/// - interleaved: micro-batches go through a rank's V stages in groups of S. On rank s
///   min(2(S-s-1) + (V-1)S, MV) forwards, then alternately one forward and one backward; all
///   forwards first if M <= S. If S does not divide M: the order for the next multiple of S,
///   without the micro-batches that do not exist. With V = 1 it is 1f1b.
/// - zero-bubble: the order of interleaved, with weight gradients deferred until a rank would wait.
///   Holds no more activations than interleaved's first rank.
///
/// Source: GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473; Qi et al.,
/// arXiv:2401.10241 (ZB-H1).
enum class ScheduleKind : uint8_t { kGpipe, k1F1B, kInterleaved, kZeroBubble };

/// "gpipe", "1f1b", "interleaved" or "zero-bubble"; and the inverse, Error(kUsage) for other names.
std::string_view name(ScheduleKind kind);
ScheduleKind schedule_from_name(const std::string& name);

/// One piece of a rank's work. If the schedule has kWeight actions, they compute the gradients of
/// weights, and kBackward does not.
struct Action {
  enum class Kind : uint8_t { kForward, kBackward, kWeight } kind = Kind::kForward;
  int stage = 0;
  int micro_batch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "forward of micro-batch 3 on stage 2".
std::string describe(const Action& action);

/// Sizes of a schedule.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int num_ranks = 1;          ///< of the pipeline's axis, >= 1
  int stages_per_rank = 1;    ///< "virtual" stages, >= 1; stage s is on rank s % num_ranks
  int num_micro_batches = 1;  ///< >= 1
};

/// The actions of every rank, in order.
struct Schedule {
  ScheduleShape shape;
  std::vector<std::vector<Action>> ranks;

  [[nodiscard]] int num_stages() const { return shape.num_ranks * shape.stages_per_rank; }
  /// Whether it has an action of the kind.
  [[nodiscard]] bool has(Action::Kind kind) const;
};

/// The schedule of a training step, checked. Throws Error(kUsage) for sizes below 1, and for 1f1b
/// with several stages a rank.
Schedule make_schedule(const ScheduleShape& shape);

/// The schedule of an evaluation: only forwards, through every stage; `kind` is ignored.
Schedule make_forward_schedule(const ScheduleShape& shape);

/// Checks a schedule by simulation: every stage's forward (and backward and weights, if there are
/// any) must occur once per micro-batch on the stage's rank, and the ranks must not deadlock if
/// sends never wait. Throws Error(kBug) naming what each rank would wait for.
void check_schedule(const Schedule& schedule);

/// The most activations that a rank holds at the same time, counted as micro-batches times stages:
/// from their forward to the end of their backward.
int peak_live(const Schedule& schedule, int rank);

/// Duration of an action in any unit.
using ActionCost = std::function<double(const Action&)>;

/// Forward 1, backward 2; with deferred weights backward 1 and weights 1.
ActionCost unit_cost(const Schedule& schedule);

/// When each action of a schedule runs if messages take no time.
struct Timeline {
  /// Begin and end of one action.
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> ranks;  ///< indexed as Schedule::ranks
  double end = 0;                        ///< when the last rank ends; the first begins at 0

  /// Share of the ranks' time until `end` in which they wait, in [0, 1].
  [[nodiscard]] double idle_share() const;
};

/// Each action begins when its rank is free and its input has arrived. Throws as check_schedule.
Timeline timeline_of(const Schedule& schedule, const ActionCost& cost);

/// The planned schedule with unit costs as a drawing, one row a rank, with its idle share: SVG.
std::string draw_schedule(const Schedule& schedule);

}  // namespace cleave::inline pipeline
