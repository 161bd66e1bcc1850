// Combinations of tensor, sequence, pipeline and data parallelism with ZeRO-1 and FSDP, against one
// rank in fp64. CLEAVE_TEST_LEVEL=full runs all that fit in eight rank threads; otherwise a set
// that contains every pair of sizes. kernel_grid_test.cc tests the types that users train in.
#include <algorithm>
#include <map>
#include <mutex>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "cleave/checkpoint/run_folder.h"
#include "tests/support/level.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_grid.h"

namespace cleave::grid_test {
namespace {

using test::all_points;
using test::covering;
using test::grid_model;
using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::kDimensions;
using test::on_world;
using test::Point;
using test::record_of_one_rank;

constexpr int64_t kSteps = test::kGridSteps;
// Sums of a few thousand products in another order: 2^-53 times their number, times a factor of
// about a hundred for the error growth over eight layers and three steps.
constexpr double kTolerance = 1e-9;

std::vector<Point> points_to_run() {
  return test::level() == test::Level::kQuick ? covering(all_points()) : all_points();
}

std::string describe(const Point& point, const GridCase& c) {
  return point.layout(*grid_model(c), at::kDouble).describe();
}

void save(GridRunner& run, World& world, const std::string& folder) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) ranks[static_cast<size_t>(r)] = r;
  const Axis everyone = world.size() == 1 ? Axis() : Axis(world.group(ranks, "everyone"));
  save_checkpoint(folder,
                  {.step = 1,
                   .model = &run.rank().model(),
                   .optimizer = &run.rank().optimizer(),
                   .dtype = at::kDouble,
                   .carried = {},
                   .state_json = "{}",
                   .files = {}},
                  {.world = everyone, .tp = run.mesh()["tp"], .dp = run.mesh()["dp"]});
}

void resume(GridRunner& run, const std::string& folder) {
  load_model(run.rank().model(), ModelFolder::open(folder), at::kDouble);
  load_optimizer(run.rank().optimizer(), run.rank().model(), folder);
  run.rank().refresh_weights();
}

/// Raises `error` to `other` if that is larger; NaN stays NaN.
void widen(double& error, double other) {
  if (!std::isnan(error) && !(other <= error)) error = other;
}

/// Largest difference of this rank's leaves, or their gradients, from its shards of whole tensors.
double largest_error(const Parameters& parameters, const std::map<std::string, Tensor>& whole,
                     bool of_gradients) {
  double error = 0;
  for (const auto& p : parameters) {
    const Tensor want = p->part_of(whole.at(p->name()));
    if (want.numel() == 0) continue;
    const Tensor have = of_gradients ? p->leaf().grad() : p->leaf().detach();
    widen(error, (have - want).abs().max().item<double>());
  }
  return error;
}

/// The largest error of steps [from, kSteps) over ranks; weights are compared after the last.
double compare(GridRunner& run, const GridRecord& want, int64_t from) {
  double error = 0;
  for (int64_t step = from; step < kSteps; ++step) {
    const auto i = static_cast<size_t>(step);
    const auto [loss, norm] = run.gradients(step);
    widen(error, std::abs(loss - want.losses[i]));
    widen(error, std::abs(norm - want.norms[i]));
    widen(error, largest_error(run.rank().parameters(), want.gradients[i], true));
    run.apply();
  }
  widen(error, largest_error(run.rank().parameters(), want.weights, false));
  return error;
}

double error_of(const GridCase& c, const Point& point, const GridRecord& want) {
  double error = 0;
  std::mutex mutex;
  on_world(point.num_ranks(), [&](World& world) {
    GridRunner run(c, point, world);
    run.start();
    const double own = compare(run, want, 0);
    const std::lock_guard lock(mutex);
    widen(error, own);
  });
  return error;
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
    on_world(from.num_ranks(), [&](World& world) {
      GridRunner run(c, from, world);
      run.start();
      run.gradients(0);
      run.apply();
      save(run, world, saved);
    });
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
                                         "mistral", "mixtral", "smollm3", "olmo2", "phi3", "gemma2",
                                         "gemma3_text"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace cleave::grid_test
