// Combinations of tensor, sequence, pipeline and data parallelism with ZeRO-1 and FSDP, against one
// rank in fp64. CLEAVE_TEST_LEVEL=full runs all that fit in eight rank threads; otherwise a set
// that contains every pair of sizes. kernel_grid_test.cc tests the types that users train in.
#include <algorithm>
#include <map>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "tests/support/level.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_grid.h"

namespace cleave::grid_test {
namespace {

using test::all_points;
using test::compare;
using test::covering;
using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::kDimensions;
using test::on_world;
using test::Point;
using test::record_of_one_rank;

// Sums of a few thousand products in another order: 2^-53 times their number, times a factor of
// about a hundred for the error growth over eight layers and three steps.
constexpr double kTolerance = 1e-9;

std::vector<Point> points_to_run() {
  return test::level() == test::Level::kQuick ? covering(all_points()) : all_points();
}

/// Prints how often each value of each dimension occurs.
void print_counts(const std::string& family, const std::vector<Point>& points, double error) {
  log_info("grid ", family, ": ", points.size(), " layouts, largest error ", error);
  for (size_t d = 0; d < kDimensions.size(); ++d) {
    std::map<int, int> counts;
    for (const Point& p : points) ++counts[p.values()[d]];
    std::string text;
    for (const auto& [value, count] : counts) text += str("  ", value, ": ", count);
    log_info("  ", kDimensions[d], text);
  }
}

class Grid : public testing::TestWithParam<std::string> {};

TEST_P(Grid, EveryLayout_TrainsAsOneRankDoes) {
  const GridCase c{.family = GetParam()};
  const GridRecord want = record_of_one_rank(c);
  EXPECT_LT(want.losses[2], 2 * want.losses[0]);
  const std::vector<Point> points = points_to_run();
  double largest = 0;
  for (const Point& point : points) {
    const double error = error_of(c, point, want);
    EXPECT_LE(error, kTolerance) << describe(point, c);
    largest = std::max(largest, error);
  }
  print_counts(GetParam(), points, largest);
}

TEST_P(Grid, OtherSchedules_TrainAsOneRankDoesWithAnySharding) {
  const GridCase c{.family = GetParam()};
  const GridRecord want = record_of_one_rank(c);
  for (const ScheduleKind schedule : {ScheduleKind::kGpipe, ScheduleKind::kZeroBubble}) {
    for (const int sharding : {0, 1, 2}) {
      const Point point{.tp = 2, .pp = 2, .dp = 2, .sharding = sharding, .schedule = schedule};
      EXPECT_LE(error_of(c, point, want), kTolerance) << describe(point, c);
    }
  }
}

// The logits of a token have at most 184 bytes, so a part has one to a few of the 7 or 14 tokens.
TEST_P(Grid, LossInParts_TrainsAsOneRankWithWholeLogitsDoes) {
  constexpr int64_t kBytes = 300;
  constexpr auto kZeroBubble = ScheduleKind::kZeroBubble;
  constexpr auto kFull = RecomputeKind::kFull;
  const GridCase c{.family = GetParam()};
  const GridRecord want = record_of_one_rank(c);
  for (Point point :
       {Point{.recompute = kFull}, Point{.tp = 2}, Point{.tp = 3, .sp = 1}, Point{.dp = 2},
        Point{.dp = 2, .sharding = 1}, Point{.tp = 2, .sp = 1, .dp = 2, .sharding = 2},
        Point{.tp = 2, .pp = 2, .dp = 2, .sharding = 1, .schedule = kZeroBubble},
        Point{.pp = 2, .virtual_stages = 2, .dp = 2, .sharding = 2}}) {
    point.head_loss = {.most_bytes = kBytes, .least_tokens = 0};
    EXPECT_LE(error_of(c, point, want), kTolerance) << describe(point, c);
  }
}

TEST_P(Grid, SavedOnOneLayout_ResumesOnAnother) {
  const GridCase c{.family = GetParam()};
  const GridRecord want = record_of_one_rank(c);
  const std::vector<Point> points = all_points();
  std::mt19937 random(7);
  const size_t num_pairs = points_to_run().size() == points.size() ? 20 : 7;
  for (size_t i = 0; i < num_pairs; ++i) {
    const Point& from = points[random() % points.size()];
    const Point& to = points[random() % points.size()];
    const test::TempFolder folder;
    const std::string saved = (folder / "saved").string();
    save_first_step(c, from, saved);
    on_world(to.num_ranks(), [&](World& world) {
      GridRunner run(c, to, world);
      resume(run, saved);
      EXPECT_LE(compare(run, want, 1), kTolerance)
          << describe(from, c) << " to " << describe(to, c);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Grid,
                         testing::Values("llama", "gpt2", "bert", "qwen2", "qwen3", "qwen3_moe",
                                         "mistral", "mixtral", "smollm3", "olmo2", "olmo3", "phi3",
                                         "gemma2", "gemma3_text"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace cleave::grid_test
