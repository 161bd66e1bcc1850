#include "cleave/report/lesson.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/report/record.h"
#include "cleave/report/replay.h"
#include "tests/support/temp_folder.h"

namespace cleave::lesson_test {
namespace {

using json = nlohmann::json;

/// The ranks of a 1F1B pipeline of `p` stages and `m` micro-batches, written out by its rule:
/// p - s - 1 forwards on rank s, then alternately one forward and one backward, then the rest.
std::vector<LessonRank> one_f_one_b(int p, int m, double forward_s, double backward_s) {
  std::vector<LessonRank> ranks(static_cast<size_t>(p));
  for (int s = 0; s < p; ++s) {
    auto& actions = ranks[static_cast<size_t>(s)].actions;
    const int warm_up = std::min(p - s - 1, m);
    const auto forward = [&](int i) { actions.push_back({true, s, i, forward_s}); };
    const auto backward = [&](int i) { actions.push_back({false, s, i, backward_s}); };
    for (int i = 0; i < warm_up; ++i) forward(i);
    for (int i = warm_up; i < m; ++i) {
      forward(i);
      backward(i - warm_up);
    }
    for (int i = m - warm_up; i < m; ++i) backward(i);
  }
  return ranks;
}

// Oracle: Narayanan et al., arXiv:2104.04473: the bubble of equal stages is (p - 1) / m.
TEST(Lesson, BubbleOfEqualStages_IsThatOfTheFormula) {
  EXPECT_NEAR(bubble_of(one_f_one_b(4, 8, 1, 2)), 3.0 / 8, 1e-12);
  EXPECT_NEAR(bubble_of(one_f_one_b(2, 4, 0.5, 0.25)), 1.0 / 4, 1e-12);
  EXPECT_NEAR(bubble_of(one_f_one_b(1, 3, 1, 1)), 0, 1e-12);
}

// Two stages, one micro-batch: 1 + 3 + 4 + 2 seconds one after the other, 5 of work on each.
TEST(Lesson, BubbleOfUnequalStages_FollowsTheirTimes) {
  std::vector<LessonRank> ranks(2);
  ranks[0].actions = {{true, 0, 0, 1}, {false, 0, 0, 2}};
  ranks[1].actions = {{true, 1, 0, 3}, {false, 1, 0, 4}};
  EXPECT_NEAR(bubble_of(ranks), (10.0 - 5) / 5, 1e-12);
}

TEST(Lesson, ActionsThatWaitForEachOther_AreRefused) {
  std::vector<LessonRank> ranks(2);
  ranks[0].actions = {{false, 0, 0, 1}, {true, 0, 0, 1}};
  ranks[1].actions = {{true, 1, 0, 1}, {false, 1, 0, 1}};
  EXPECT_THROW((void)bubble_of(ranks), Error);
}

TEST(Lesson, MostInFlight_CountsForwardsWithoutTheirBackward) {
  const std::vector<LessonRank> ranks = one_f_one_b(4, 8, 1, 2);
  for (int s = 0; s < 4; ++s) EXPECT_EQ(most_in_flight(ranks[static_cast<size_t>(s)]), 4 - s);
}

/// A rank with a layer from 1 to 9 s that takes 6 s of CPU time, an all-reduce in it that takes 2,
/// an action around both, and an all-reduce on a helper thread.
RankRecording recording() {
  RankRecording r{.rank = 0, .host = "a", .step_s = 10, .comm_end_s = 10};
  r.names = {"forward of micro-batch 5, stage 3", "layers.0", "layers.0 Partial to Replicate",
             "gradients over dp"};
  r.axes = {{.name = "tp", .ranks = {0, 1}}, {.name = "dp", .ranks = {0, 2}}};
  r.calls = {{.op = "all_reduce", .bytes = 8, .sent = 10},
             {.op = "all_reduce", .axis = 1, .bytes = 8, .sent = 30}};
  r.events = {
      {.kind = EventKind::kAction, .end_s = 9.5, .cpu_s = 7},
      {.kind = EventKind::kForward, .name = 1, .begin_s = 1, .end_s = 9, .cpu_s = 6},
      {.kind = EventKind::kCollective, .name = 2, .begin_s = 3, .end_s = 6, .cpu_s = 2, .call = 0},
      {.kind = EventKind::kCollective,
       .name = 3,
       .track = 2,
       .begin_s = 2,
       .end_s = 8,
       .cpu_s = 1,
       .call = 1}};
  r.memory = {{.at_s = 1, .bytes = {10, 0, 3, 0, 0}}, {.at_s = 9, .bytes = {4, 5, 0, 7, 9}}};
  return r;
}

TEST(Lesson, RecordedRun_IsReadBack) {
  const test::TempFolder folder;
  const Replay replay{.title = "one", .places = {"rank 0"}, .num_cores = 2, .ranks = {recording()}};
  std::ofstream(folder / "replay.json") << chrome_trace(replay);
  write_record(
      folder.path().string(),
      {.title = "one",
       .memory = {
           {.rank = "rank 0",
            .bytes = {
                {"weights", 40}, {"gradients", 30}, {"optimizer", 20}, {"activations", 2}}}}});
  const LessonRun run = read_lesson_run(folder.path().string());
  ASSERT_EQ(run.ranks.size(), 1U);
  const LessonRank& rank = run.ranks[0];
  ASSERT_EQ(rank.calls.size(), 2U);
  EXPECT_EQ(rank.calls[0].site, "layers.0 Partial to Replicate");
  EXPECT_EQ(rank.calls[0].axis, "tp");
  EXPECT_TRUE(rank.calls[0].is_in_layer);
  EXPECT_EQ(rank.calls[0].sent, 10);
  EXPECT_EQ(rank.calls[1].axis, "dp");
  EXPECT_FALSE(rank.calls[1].is_in_layer);
  ASSERT_EQ(rank.actions.size(), 1U);
  EXPECT_TRUE(rank.actions[0].is_forward);
  EXPECT_EQ(rank.actions[0].micro_batch, 5);
  EXPECT_EQ(rank.actions[0].stage, 3);
  EXPECT_DOUBLE_EQ(rank.actions[0].cpu_s, 7 - 2);
  EXPECT_DOUBLE_EQ(rank.layers_cpu_s, 6 - 2);
  EXPECT_EQ(rank.weights, 40);
  EXPECT_EQ(rank.gradients, 30);
  EXPECT_EQ(rank.moments, 20);
  EXPECT_EQ(rank.peak, 92);
  EXPECT_EQ(rank.gathered, 7);
}

// Oracle: the sizes of config.json, counted by hand: 2 blocks of width 4, MLP of 6, 10 tokens.
TEST(Lesson, Weights_AreCountedByTheSizes) {
  const LessonSizes sizes{.layers = 2, .hidden = 4, .ffn = 6, .vocab = 10};
  EXPECT_EQ(norm_weights(sizes), 5 * 4);
  EXPECT_EQ(block_weights(sizes), 4 * 16 + 3 * 24 + 8);
  EXPECT_EQ(all_weights(sizes), 2 * 144 + 2 * 40 + 4);
}

TEST(Lesson, Numbers_AreShownWithTheirUnit) {
  EXPECT_EQ(number_text(16777216, LessonUnit::kBytes), "16.0 MiB");
  EXPECT_EQ(number_text(0.375, LessonUnit::kShare), "37.5 %");
  EXPECT_EQ(number_text(4, LessonUnit::kCount), "4");
}

TEST(Lesson, Page_HasTheQuestionsAndStillItsData) {
  const Replay replay{.title = "one", .places = {"rank 0"}, .num_cores = 2, .ranks = {recording()}};
  const std::string page = with_lesson(
      replay_page(replay), "A lesson",
      {{.question = "How \"many\"?", .formula = "a + b", .expected = 1024, .measured = 512}});
  const size_t begin = page.find("id=\"data\">") + 10;
  const json data = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data.at("lesson").at("title"), "A lesson");
  const json& question = data.at("lesson").at("questions").at(0);
  EXPECT_EQ(question.at("question"), "How \"many\"?");
  EXPECT_EQ(question.at("expected"), "1.0 KiB");
  EXPECT_EQ(question.at("measured"), "512 bytes");
  EXPECT_EQ(data.at("ranks").size(), 1U);
}

}  // namespace
}  // namespace cleave::lesson_test
