// Experts that are shared out over data-parallel ranks (--ep), against one rank in fp64, and
// against the same data-parallel layout without ep in the types that users train in.
#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/planner/forecast.h"
#include "cleave/planner/layout_options.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/train_grid.h"

namespace cleave::expert_parallel_test {
namespace {

using test::compare;
using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::on_world;
using test::Point;

constexpr int64_t kSteps = test::kGridSteps;
constexpr double kTolerance = 1e-9;  // as in grid_test.cc

/// Three experts on two or three ranks of ep.
std::vector<Point> layouts() {
  constexpr auto kFull = RecomputeKind::kFull;
  return {{.dp = 2, .ep = 2},
          {.dp = 3, .ep = 3},
          {.dp = 4, .ep = 2},
          {.dp = 2, .sharding = 1, .ep = 2},
          {.dp = 4, .sharding = 1, .recompute = kFull, .ep = 2},
          {.dp = 2, .sharding = 2, .ep = 2},
          {.dp = 4, .sharding = 2, .recompute = kFull, .ep = 2},
          {.tp = 2, .pp = 2, .dp = 2, .sharding = 2, .ep = 2},
          {.tp = 2, .dp = 2, .ep = 2},
          {.tp = 2, .sp = 1, .dp = 2, .sharding = 1, .recompute = kFull, .ep = 2},
          {.pp = 2, .dp = 2, .ep = 2},
          {.pp = 2, .virtual_stages = 2, .dp = 2, .recompute = kFull, .ep = 2},
          {.pp = 2, .dp = 2, .sharding = 1, .schedule = ScheduleKind::kZeroBubble, .ep = 2}};
}

class ExpertParallel : public testing::TestWithParam<std::string> {};

TEST_P(ExpertParallel, EveryLayout_TrainsAsOneRankDoes) {
  const GridCase c{.family = GetParam()};
  const GridRecord want = test::record_of_one_rank(c);
  for (const Point& point : layouts()) {
    EXPECT_LE(error_of(c, point, want), kTolerance) << describe(point, c);
  }
}

/// Loss and norm of each step.
std::vector<std::pair<double, double>> steps_of(const GridCase& c, const Point& point,
                                                at::ScalarType type) {
  std::vector<std::pair<double, double>> out;
  on_world(point.num_ranks(), [&](World& world) {
    GridRunner run(c, point, world, type);
    run.start();
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto own = run.gradients(step);
      if (world.rank() == 0) out.push_back(own);
      run.apply();
    }
  });
  return out;
}

// A token has all experts, so that rounding does not decide which. Results of the experts are those
// of other batches of rows, which are rounded the other way at worst once in each of eight layers:
// 2^-24 or 2^-9 relative each, and as much again in backward and in each of the three steps.
TEST_P(ExpertParallel, InTheTypesThatUsersTrainIn_EqualsDataParallel) {
  GridCase c{.family = GetParam(), .head_dim = 16};
  c.optimizer.eps = 1e-2;  // as in kernel_grid_test.cc
  for (const auto& [type, unit] :
       {std::pair(at::kFloat, 0x1p-24), std::pair(at::kBFloat16, 0x1p-9)}) {
    for (const int sharding : {0, 1, 2}) {
      const Point data{.dp = 2, .sharding = sharding};
      Point experts = data;
      experts.ep = 2;
      const auto want = steps_of(c, data, type);
      const auto got = steps_of(c, experts, type);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got[i].first, want[i].first, 48 * unit * want[i].first) << type << i;
        EXPECT_NEAR(got[i].second, want[i].second, 48 * unit * want[i].second) << type << i;
      }
    }
  }
}

TEST_P(ExpertParallel, SavedOnOneLayout_ResumesOnAnother) {
  const GridCase c{.family = GetParam()};
  const GridRecord want = test::record_of_one_rank(c);
  const std::vector<std::pair<Point, Point>> pairs{
      {{.dp = 2, .ep = 2}, {.tp = 2}},
      {{.tp = 2, .dp = 2, .sharding = 1}, {.dp = 3, .ep = 3}},
      {{.dp = 4, .sharding = 1, .ep = 2}, {.pp = 2, .dp = 2, .ep = 2}},
      {{.pp = 2, .dp = 4, .ep = 2}, {.dp = 4, .sharding = 2, .ep = 2}}};
  for (const auto& [from, to] : pairs) {
    const test::TempFolder folder;
    const std::string saved = (folder / "saved").string();
    save_first_step(c, from, saved);
    on_world(to.num_ranks(), [&, from = from, to = to](World& world) {
      GridRunner run(c, to, world);
      resume(run, saved);
      EXPECT_LE(compare(run, want, 1), kTolerance)
          << describe(from, c) << " to " << describe(to, c);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertParallel, testing::Values("mixtral", "qwen3_moe"),
                         [](const auto& param) { return param.param; });

TEST(ExpertParallelLayout, OptionsThatDoNotFit_AreRefusedByName) {
  const auto refusal = [](const std::string& family, ParallelConfig layout) {
    const auto model = test::grid_model({.family = family});
    layout.plan = model->plan();
    return test::thrown_by([&] { try_layout(*model, layout); });
  };
  const Error uneven = refusal("mixtral", {.dp = 3, .ep = 2});
  EXPECT_EQ(uneven.code(), Code::kShape);
  EXPECT_THAT(uneven.what(), testing::HasSubstr("ep=2 does not divide dp=3"));
  EXPECT_THAT(refusal("mixtral", {.dp = 4, .ep = 4}).what(), testing::HasSubstr("fewer than ep=4"));
  EXPECT_THAT(refusal("llama", {.dp = 2, .ep = 2}).what(),
              testing::HasSubstr("the model has none"));
}

// The experts of one rank would be missing in the norm.
TEST(ExpertParallelLayout, NormWithoutTheAxisOfExperts_IsRefused) {
  const GridCase c{.family = "mixtral"};
  on_world(2, [&](World& world) {
    GridRunner run(c, {.dp = 2, .ep = 2}, world);
    run.start();
    (void)run.gradients(0);
    const Error error =
        test::thrown_by([&] { (void)gradient_norm(trained_of(run.rank().parameters()), Axis()); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), testing::HasSubstr("use gradient_norm(parameters, tp, ep)"));
  });
}

// One of three experts is on the other rank: 3 matrices of 12 x 5 in each of 8 layers, 4 bytes
// each.
TEST(ExpertParallelLayout, Forecast_HasTheWeightsOfTheRanksExperts) {
  const auto model = test::grid_model({.family = "mixtral"});
  const auto weights = [&](int ep) {
    const ParallelConfig layout{.dp = 2, .ep = ep, .plan = model->plan()};
    const StepShape step{.batch_size = 4, .micro_batch_size = 2, .seq_len = 7};
    return forecast(model->config(), layout, step).ranks.front().memory.weights;
  };
  EXPECT_EQ(weights(1) - weights(2), 8 * 3 * 12 * 5 * 4);
}

// In bf16, one micro-batch: the gradients of two experts that no other rank has stay bf16; with ep
// 1 those of three are summed over the ranks in fp32.
TEST(ExpertParallelLayout, Forecast_HasNarrowGradientsOfExpertsOnOneRank) {
  const auto model = test::grid_model({.family = "mixtral"});
  const auto gradients = [&](int ep) {
    const ParallelConfig layout{
        .dp = 2, .ep = ep, .plan = model->plan(), .compute_type = at::kBFloat16};
    const StepShape step{.batch_size = 4, .micro_batch_size = 2, .seq_len = 7};
    return forecast(model->config(), layout, step).ranks.front().memory.gradients;
  };
  EXPECT_EQ(gradients(1) - gradients(2), 8 * 3 * 12 * 5 * (3 * 4 - 2 * 2));
}

}  // namespace
}  // namespace cleave::expert_parallel_test
