#include "cleave/train/early_stop.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::early_stop_test {
namespace {

using test::TempFolder;

TEST(EarlyStop, EvaluationsInARowWithoutImprovement_EndTheRun) {
  EarlyStop stop(2);
  for (const double loss : {3.0, 2.0, 2.0, 1.0, std::nan("")}) {
    stop.note(stop.state().best_step + 2, loss);
    EXPECT_FALSE(stop.is_over());
  }
  EXPECT_EQ(stop.state().best_loss, 1.0);
  stop.note(10, 1.5);
  EXPECT_TRUE(stop.is_over());
  EarlyStop longer(3);
  longer.restore(stop.state());
  EXPECT_FALSE(longer.is_over());
  EarlyStop off(0);
  for (int i = 0; i < 9; ++i) off.note(i, 1);
  EXPECT_FALSE(off.is_over());
}

/// A run whose weights, and so its evaluations, stay the same.
TrainOptions still_run(const TempFolder& folder) {
  std::ofstream(folder / "eval.txt") << std::string(40, 'a');
  TrainOptions o = test::small_run(folder);
  o.eval_data = {folder / "eval.txt"};
  o.eval_every = 1;
  o.steps = 9;
  o.lr = 0;
  o.keep_last = 1;
  return o;
}

// The first evaluation is the best, the second and the third are as good: the run ends there. It
// stays ended when it is resumed, unless it may wait longer.
TEST(TrainWithEarlyStop, LossThatStays_EndsTheRunAndKeepsTheBestCheckpoint) {
  const TempFolder folder;
  for (const int ranks : {1, 2}) {
    TrainOptions o = still_run(folder);
    o.out = folder / (ranks == 1 ? "one" : "two");
    o.dp = o.pp = ranks;
    o.early_stop = 2;
    const auto expect_end = [&](int64_t step) {
      cleave_train(o);
      EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), static_cast<size_t>(step));
      const auto checkpoints = list_checkpoints(o.out);
      ASSERT_EQ(checkpoints.size(), 2U);
      EXPECT_EQ(checkpoints[0].filename(), checkpoint_name(1));
      EXPECT_EQ(checkpoints[1].filename(), checkpoint_name(step));
    };
    expect_end(3);
    o.resume = true;
    testing::internal::CaptureStdout();
    expect_end(3);
    EXPECT_NE(testing::internal::GetCapturedStdout().find("raise --early-stop to train longer"),
              std::string::npos);
    o.early_stop = 4;
    expect_end(5);
  }
}

TEST(TrainWithEarlyStop, WithoutIt_TheRunGoesToItsLastStep) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  o.out = folder / "run";
  cleave_train(o);
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), 9U);
}

}  // namespace
}  // namespace cleave::early_stop_test
