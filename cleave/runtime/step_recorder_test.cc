#include "cleave/runtime/step_recorder.h"

#include <thread>

#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"

namespace cleave::step_recorder_test {
namespace {

StepRecorder::Memory no_memory() {
  return [] { return std::array<int64_t, kMemoryKinds.size()>{}; };
}

TEST(StepRecorder, WithoutOne_ThreadHasNone) {
  EXPECT_EQ(StepRecorder::active(), nullptr);
  StepRecorder recorder(no_memory());
  EXPECT_EQ(StepRecorder::active(), &recorder);
  std::thread([] { EXPECT_EQ(StepRecorder::active(), nullptr); }).join();
}

TEST(StepRecorder, Scopes_AreNestedInTime) {
  StepRecorder recorder(no_memory());
  {
    const RecordedScope outer(EventKind::kPhase, "outer");
    EXPECT_EQ(recorded("inner", [] { return 3; }), 3);
  }
  const RankRecording r = recorder.finish(0);
  ASSERT_EQ(r.events.size(), 2U);
  EXPECT_EQ(r.names[static_cast<size_t>(r.events[0].name)], "outer");
  EXPECT_LE(r.events[0].begin_s, r.events[1].begin_s);
  EXPECT_GE(r.events[0].end_s, r.events[1].end_s);
}

// Nodes 10 to 13: two of layer a before its child b, one of b, one of a after it.
TEST(StepRecorder, BackwardOfANode_BelongsToTheInnermostLayerThatMadeIt) {
  StepRecorder recorder(no_memory());
  recorder.begin_layer("a", 10);
  recorder.begin_layer("b", 12);
  recorder.end_layer(13);
  recorder.end_layer(14);
  for (const uint64_t node : std::vector<uint64_t>{14, 13, 12, 11, 10, 9}) {
    recorder.begin_node("other", node);
    recorder.end_node();
  }
  const RankRecording r = recorder.finish(0);
  std::vector<std::string> got;
  for (const StepEvent& e : r.events) {
    got.push_back(std::string(name(e.kind)) + " " + r.names[static_cast<size_t>(e.name)]);
  }
  // 11 and 10 follow each other, and are one event.
  EXPECT_EQ(got, (std::vector<std::string>{"forward a", "forward b", "backward other", "backward a",
                                           "backward b", "backward a", "backward other"}));
}

TEST(StepRecorder, LayerDuringBackward_IsARecomputation) {
  StepRecorder recorder(no_memory());
  recorder.begin_node("recompute", 5);
  recorder.begin_layer("a", 10);
  recorder.end_layer(12);
  recorder.begin_node("other", 11);
  recorder.end_node();
  recorder.end_node();
  const RankRecording r = recorder.finish(0);
  ASSERT_EQ(r.events.size(), 3U);
  EXPECT_EQ(r.events[1].kind, EventKind::kRecompute);
  EXPECT_EQ(r.events[2].kind, EventKind::kBackward);
  EXPECT_EQ(r.events[2].name, r.events[1].name);
}

TEST(StepRecorder, BeyondTheLimit_CountsWhatItLeavesOut) {
  StepRecorder recorder(no_memory());
  for (size_t i = 0; i < StepRecorder::kMostEvents + 5; ++i) {
    const RecordedScope scope(EventKind::kPhase, "again");
  }
  const RankRecording r = recorder.finish(0);
  EXPECT_EQ(r.events.size(), StepRecorder::kMostEvents);
  EXPECT_EQ(r.num_left_out, 5);
  EXPECT_LE(r.memory.size(), StepRecorder::kMostSamples);
}

TEST(StepRecorder, BeyondTheLimitOfSamples_ThePeakStays) {
  size_t num_samples = 0;
  StepRecorder recorder([&num_samples] {
    std::array<int64_t, kMemoryKinds.size()> bytes{};
    bytes[0] = ++num_samples == 2 ? 1000 : 1;  // the second of a pair
    return bytes;
  });
  while (num_samples <= StepRecorder::kMostSamples) {
    const RecordedScope scope(EventKind::kPhase, "again");
  }
  const RankRecording r = recorder.finish(0);
  EXPECT_LT(r.memory.size(), StepRecorder::kMostSamples);
  ASSERT_FALSE(r.memory.empty());
  EXPECT_EQ(r.memory[0].bytes[0], 1000);
}

TEST(StepRecorder, Calls_AreNumberedByGroupAndDirection) {
  run_ranks(2, [](World& world) {
    const auto group = world.group({0, 1}, "tp");
    StepRecorder recorder(no_memory());
    const int peer = 1 - world.rank();
    for (const BegunCall& call : {BegunCall{.op = "all_reduce", .site = "x"},
                                  BegunCall{.op = "send", .site = "x", .peer = peer},
                                  BegunCall{.op = "recv", .site = "x", .peer = peer},
                                  BegunCall{.op = "all_reduce", .site = "x"}}) {
      recorder.begin_call(*group, call);
      recorder.end();
    }
    const auto helper = recorder.start_helper(*group, {.op = "all_reduce", .site = "x"});
    std::thread([&] { helper->run([] {}); }).join();
    const auto never = recorder.start_helper(*group, {.op = "all_reduce", .site = "x"});
    const RankRecording r = recorder.finish(0);
    std::vector<int64_t> numbers;
    for (const StepCall& call : r.calls) numbers.push_back(call.number);
    EXPECT_EQ(numbers, (std::vector<int64_t>{0, 0, 0, 1, 2, 3}));
    ASSERT_EQ(r.events.size(), 5U);  // the last call has not ended
    EXPECT_EQ(r.events.back().track, 1);
    EXPECT_EQ(r.axes[0].name, "tp");
  });
}

}  // namespace
}  // namespace cleave::step_recorder_test
