#include "cleave/train/early_stop.h"

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/stop.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/report/metrics.h"
#include "cleave/text/json.h"
#include "cleave/train/options.h"
#include "cleave/train/resume.h"
#include "cleave/train/setup.h"
#include "cleave/train/trainer.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

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

// JSON has no NaN and no infinity: there is no best loss to save.
TEST(EarlyStop, EvaluationsThatAreNotFinite_AreCountedAlsoAfterAResume) {
  const TempFolder folder;
  TrainOptions o = test::small_run(folder);
  o.early_stop = 3;
  const TrainSetup setup = make_setup(o, 0);
  run_ranks(1, [&](World& world) {
    const auto mesh = Mesh::build(world, {{"tp", 1}});
    RunState state(setup), resumed(setup);
    for (const double loss : {std::nan(""), double{INFINITY}}) state.early_stop.note(1, loss);
    resumed.restore(Json::parse(state.json(setup, mesh), "state.json"), o.out);
    EXPECT_FALSE(resumed.early_stop.is_over());
    resumed.early_stop.note(3, std::nan(""));
    EXPECT_TRUE(resumed.early_stop.is_over());
    EXPECT_EQ(resumed.early_stop.state().best_step, -1);
  });
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

TEST(TrainWithEarlyStop, ResumedWithoutIt_KeepsTheBestCheckpoint) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  o.early_stop = 2;
  cleave_train(o);
  o.resume = true;
  o.early_stop = 0;
  o.steps = 5;
  cleave_train(o);
  o.early_stop = 9;
  o.steps = 6;
  cleave_train(o);
  const auto checkpoints = list_checkpoints(o.out);
  ASSERT_EQ(checkpoints.size(), 2U);
  EXPECT_EQ(checkpoints[0].filename(), checkpoint_name(1));
  EXPECT_EQ(checkpoints[1].filename(), checkpoint_name(6));
}

// Oracle: inclusion and exclusion of the multiples of 2 and of 3 below 10^9, and the last step.
TEST(TrainWithEarlyStop, StepThatIsSavedAndEvaluated_CountsOnceForTheDisk) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  o.keep_last = 0;
  o.early_stop = 9;
  o.steps = 1'000'000'000;
  o.save_every = 2;
  o.eval_every = 3;
  const Error error = test::thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(std::string(error.what()).find(": 666666667 checkpoints of "), std::string::npos)
      << error.what();
}

TEST(TrainWithEvaluations, Terminal_ShowsHowFarAnEvaluationIs) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  o.steps = 1;
  setenv("TERM", "xterm", 1);
  test::Captured out(80);
  cleave_train(o);
  EXPECT_NE(out.take().find("evaluation sequence "), std::string::npos);
}

TEST(TrainWithEarlyStop, EvaluationDataWithoutLabels_AreRefused) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  o.eval_data = {folder / "eval.jsonl"};
  // The first label of a sequence has no token before it that could predict it.
  for (const char* labels : {"[-100, -100]", "[1, -100]"}) {
    std::ofstream(folder / "eval.jsonl") << R"({"input_ids": [1, 2], "labels": )" << labels << "}";
    const Error error = test::thrown_by([&] { cleave_train(o); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), testing::HasSubstr("--eval-data has no target"));
    EXPECT_FALSE(std::filesystem::exists(o.out + "/metrics.jsonl"));  // before any step
  }
}

/// Raises SIGTERM at the first sample after `num_samples`.
class SignalAfter : public Dataset {
 public:
  SignalAfter(std::shared_ptr<const Dataset> data, int64_t num_samples)
      : data_(std::move(data)), left_(num_samples) {}
  [[nodiscard]] int64_t size() const override { return data_->size(); }
  [[nodiscard]] Sample sample(int64_t index) const override {
    if (left_-- == 0) (void)std::raise(SIGTERM);
    return data_->sample(index);
  }
  [[nodiscard]] bool is_text() const override { return data_->is_text(); }
  [[nodiscard]] uint64_t fingerprint() const override { return data_->fingerprint(); }

 private:
  std::shared_ptr<const Dataset> data_;
  mutable std::atomic<int64_t> left_;
};

// Oracle: the uninterrupted run, to the bit. The signal arrives in step 1, whose batch is read at
// the start too, so that the evaluation after it is left out. Of one step, none is left for the
// resumed run.
TEST(TrainWithEarlyStop, EvaluationThatASignalInterrupts_IsMadeUpByTheResumedRun) {
  const TempFolder folder;
  for (const int ranks : {1, 2}) {
    for (const int64_t steps : {1, 3}) {
      TrainOptions o = still_run(folder);
      o.lr = 1e-2;
      o.steps = steps;
      o.dp = ranks;
      o.early_stop = 3;
      o.out = folder / str("whole", ranks, steps);
      const auto want = test::steps_of(o);
      o.out = folder / str("stopped", ranks, steps);
      TrainSetup setup = make_setup(o, 0);
      // Each rank reads the lengths of the whole batch, then its share.
      setup.data = std::make_shared<SignalAfter>(setup.data, (ranks + 1) * o.batch_size);
      {
        const StopSignal stop;
        run_ranks(ranks, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), SIGTERM); });
      }
      const auto stopped = read_metrics(o.out + "/metrics.jsonl");
      ASSERT_EQ(stopped.size(), 1U);
      EXPECT_TRUE(std::isnan(stopped[0].eval_loss.value_or(NAN)));
      o.resume = true;
      const auto got = test::steps_of(o);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].loss, want[i].loss);
        EXPECT_EQ(got[i].eval_loss.value(), want[i].eval_loss.value());
        EXPECT_EQ(got[i].tokens, want[i].tokens);
      }
      if (steps == 1) continue;
      const auto best = [&](const std::string& run) {
        const Json state = Json::parse_file(folder / run / checkpoint_name(steps) / "state.json");
        return std::pair(state.at("best_step").as_int(), state.at("best_loss").as_number());
      };
      EXPECT_EQ(best(str("stopped", ranks, steps)), best(str("whole", ranks, steps)));
    }
  }
}

TEST(TrainWithEvaluations, OneThatASignalInterrupted_IsNotMadeUpForOtherWeights) {
  const TempFolder folder;
  TrainOptions o = still_run(folder);
  TrainSetup setup = make_setup(o, 0);
  setup.data = std::make_shared<SignalAfter>(setup.data, 2 * o.batch_size);
  {
    const StopSignal stop;
    run_ranks(1, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), SIGTERM); });
  }
  o.resume = true;
  TrainOptions without = o;
  without.steps = 2;
  without.eval_data = {};
  without.eval_every = 0;
  cleave_train(without);
  o.eval_every = o.steps.value();
  EXPECT_FALSE(test::steps_of(o).at(1).eval_loss.has_value());
}

/// The line about the best evaluation that a resumed run prints. `setup`: its own.
std::string best_of(const TrainSetup& setup, int ranks) {
  testing::internal::CaptureStdout();
  {
    const StopSignal stop;
    run_ranks(ranks, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), 0); });
  }
  const std::string shown = testing::internal::GetCapturedStdout();
  const size_t at = shown.find("best: ");
  return at == std::string::npos ? "" : shown.substr(at, shown.find('\n', at) - at);
}

// In the second resume a signal would arrive as soon as evaluation data is read. Oracle of its
// text: the first one's.
TEST(TrainWithEarlyStop, EvaluationThatWasMadeUpAfterTheLastStep_IsNotRepeated) {
  const TempFolder folder;
  for (const int ranks : {1, 2}) {
    TrainOptions o = still_run(folder);
    o.steps = 1;
    o.dp = ranks;
    o.early_stop = 3;
    o.out = folder / str("run", ranks);
    TrainSetup setup = make_setup(o, 0);
    setup.data = std::make_shared<SignalAfter>(setup.data, (ranks + 1) * o.batch_size);
    {
      const StopSignal stop;
      run_ranks(ranks, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), SIGTERM); });
    }
    o.resume = true;
    const std::string best = best_of(make_setup(o, 0), ranks);
    EXPECT_NE(best, "");
    const auto want = read_metrics(o.out + "/metrics.jsonl").at(0).eval_loss.value();
    TrainSetup again = make_setup(o, 0);
    again.eval_data = std::make_shared<SignalAfter>(again.eval_data, 0);
    EXPECT_EQ(best_of(again, ranks), best);
    EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").at(0).eval_loss.value(), want);
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
