#include "classifier.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace image_classifier {
namespace {

Result result_on(const ParallelConfig& layout, int num_steps) {
  Result out;
  run_ranks(
      layout.num_ranks(),
      [&](World& world) {
        at::get_num_threads();
        at::set_num_threads(1);
        const Result result = train(world, layout, num_steps);
        if (world.rank() == 0) out = result;
      },
      RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  return out;
}

// Oracle: one rank, in fp64. Adam divides by the root of a gradient's mean square, or by 1e-8, so
// the rounding of a gradient, about 1e-16, changes a weight by at most about 1e-10.
TEST(ImageClassifier, EveryLayout_GivesTheResultOfOneRank) {
  const Result want = result_on({.compute_type = at::kDouble}, 2);
  const std::vector<ParallelConfig> layouts = {
      {.pp = 2, .tp = 2},
      {.pp = 2, .tp = 2, .sequence_parallel = true, .recompute = RecomputeKind::kFull},
      {.tp = 4, .sequence_parallel = true},
      {.pp = 2, .dp = 2, .schedule = ScheduleKind::kZeroBubble, .sharding = DataSharding::kZero1},
      {.dp = 2, .tp = 2, .sharding = DataSharding::kFsdp, .recompute = RecomputeKind::kFull},
  };
  for (ParallelConfig layout : layouts) {
    layout.compute_type = at::kDouble;
    const Result got = result_on(layout, 2);
    EXPECT_EQ(got.accuracy, want.accuracy) << layout.describe();
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses.at(i), want.losses[i], 1e-9) << layout.describe() << ", step " << i;
    }
  }
}

// bf16 has 8 bits: a loss of weights and activations rounded to it is off by a few 2^-8.
TEST(ImageClassifier, Bf16OverStagesAndTensorParallelRanks_IsNearFp32) {
  const double want = result_on({}, 1).losses.front();
  const ParallelConfig layout{.pp = 2, .tp = 2, .compute_type = at::kBFloat16};
  EXPECT_NEAR(result_on(layout, 1).losses.front(), want, want * 4 / 256);
}

// Guessing is right for a tenth of the images.
TEST(ImageClassifier, Training_LearnsThePatterns) {
  EXPECT_GT(result_on({}, 40).accuracy, 0.5);
}

}  // namespace
}  // namespace image_classifier
