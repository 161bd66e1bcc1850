#include "cleave/pipeline/trace.h"

#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/support/tiny_sequence.h"

namespace cleave::trace_test {
namespace {

using Kind = Action::Kind;
using test::on_ranks;
using test::TinyBatch;
using test::TinyOptions;
using test::TinySequence;

/// The trace of one training step of a model with one block a stage.
Trace trace_of(ScheduleKind kind, int num_ranks, const TinyOptions& options,
               const TinyBatch& batch) {
  Trace trace;
  on_ranks(num_ranks, [&](const Axis& pp) {
    TinySequence tiny(options);
    PipelineModel model(tiny.sequence(), pp, {.schedule = kind, .trace = true});
    for (Layer* layer : model.local_layers()) materialize(*layer);
    for (int step = 0; step < 2; ++step) {  // the first step warms up
      model.run_train(batch.micro_batches(Axis()), batch.loss());
    }
    const Trace all = model.trace();
    if (pp.rank() == 0) trace = all;
  });
  return trace;
}

TEST(Trace, OfARun_HasEveryActionOfEveryRankInItsOrder) {
  const Trace trace =
      trace_of(ScheduleKind::kZeroBubble, 3, {.num_blocks = 3}, TinyBatch({2, 2, 2, 1}, 11));
  const Schedule schedule = make_schedule({ScheduleKind::kZeroBubble, 3, 1, 4});
  ASSERT_EQ(trace.size(), 3U);
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(trace[rank].size(), schedule.ranks[rank].size());
    double last = 0;
    for (size_t i = 0; i < trace[rank].size(); ++i) {
      const TraceEvent& e = trace[rank][i];
      EXPECT_EQ(e.action, schedule.ranks[rank][i]);
      EXPECT_GE(e.begin_s, last);
      EXPECT_GE(e.end_s, e.begin_s);
      EXPECT_GE(e.cpu_s, 0);
      last = e.end_s;
    }
  }
  EXPECT_GT(idle_share(trace), 0);
  EXPECT_LT(idle_share(trace), 1);
}

TEST(Trace, AsChromeReadsIt_IsPairsOfBeginAndEnd) {
  const Trace trace = {{{.action = {Kind::kForward, 0, 3}, .begin_s = 0.5, .end_s = 1.5}},
                       {{.action = {Kind::kBackward, 1, 3}, .begin_s = 1.5, .end_s = 2},
                        {.action = {Kind::kWeight, 1, 3}, .begin_s = 2, .end_s = 2.5}}};
  const auto json = nlohmann::json::parse(chrome_trace(trace));
  ASSERT_EQ(json.size(), 6U);
  EXPECT_EQ(json[0], nlohmann::json::parse(R"({"name": "mb_3_ForwardStep", "ph": "B", "ts": 5e5,
                                               "pid": 0, "tid": 0, "args": {"stage": 0}})"));
  EXPECT_EQ(json[1]["ph"], "E");
  EXPECT_EQ(json[1]["ts"], 1.5e6);
  EXPECT_EQ(json[2]["name"], "mb_3_BackwardStep");
  EXPECT_EQ(json[2]["pid"], 1);
  EXPECT_EQ(json[4]["name"], "mb_3_WeightStep");
  // From 0.5 to 2.5 two ranks have 4 s and work 2.
  EXPECT_DOUBLE_EQ(idle_share(trace), 0.5);
  EXPECT_EQ(idle_share({}), 0);
}

/// Idle share of the schedule if each action took its CPU time in the trace and every rank had its
/// own CPU.
double idle_on_own_cpus(const Schedule& schedule, const Trace& trace) {
  std::map<std::tuple<Kind, int, int>, double> cost;
  for (const auto& events : trace) {
    for (const TraceEvent& e : events) {
      cost[{e.action.kind, e.action.stage, e.action.micro_batch}] = e.cpu_s;
    }
  }
  return timeline_of(schedule,
                     [&](const Action& a) {
                       return cost.at({a.kind, a.stage, a.micro_batch});
                     })
      .idle_share();
}

// With fewer than four CPUs a rank's wall time is mostly its wait for one. So each action's CPU
// time is measured in a real run, but the waits between ranks are computed from it.
TEST(Trace, ZeroBubbleAtFourStagesAndEightMicroBatches_WaitsLessThanOneForwardOneBackward) {
  // The head is as small as an embedding, so that all stages cost the same.
  const TinyOptions options{.num_blocks = 4, .width = 96, .vocab = 16};
  const TinyBatch batch(std::vector<int64_t>(8, 4), options.vocab, 64);
  std::map<ScheduleKind, double> idle;
  for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZeroBubble}) {
    const Trace trace = trace_of(kind, 4, options, batch);
    idle[kind] = idle_on_own_cpus(make_schedule({kind, 4, 1, 8}), trace);
    std::cout << name(kind) << ": idle " << idle[kind] << " with a CPU for each rank, "
              << idle_share(trace) << " by the clock of this machine\n";
  }
  EXPECT_LT(idle[ScheduleKind::kZeroBubble], idle[ScheduleKind::k1F1B]);
}

}  // namespace
}  // namespace cleave::trace_test
