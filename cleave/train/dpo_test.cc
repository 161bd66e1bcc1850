// Runs of --task dpo: against TRL and PyTorch, one rank against layouts, resuming, evaluation.
#include <cmath>
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/file.h"
#include "cleave/report/metrics.h"
#include "cleave/text/json.h"
#include "cleave/train/options.h"
#include "cleave/train/setup.h"
#include "cleave/train/trainer.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"
#include "tests/support/saved_models.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::dpo_test {
namespace {

using test::steps_of;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

const std::string kFolder = test::source_file("tests/golden/dpo");

/// The run of tests/golden/make_dpo.py.
TrainOptions dpo_run(const std::string& out) {
  TrainOptions o;
  o.model = kFolder;
  o.task = "dpo";
  o.dpo_beta = 0.5;
  o.data = {kFolder + "/pairs.jsonl"};
  o.shuffle = false;
  o.out = out;
  o.seq_len = 64;
  o.batch_size = 2;
  o.steps = 3;
  o.lr = 3e-3;
  o.schedule = "constant";
  o.warmup = 0;
  o.weight_decay = 0;
  o.clip = 0;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

void expect_steps(const std::vector<StepMetrics>& got, const Json& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double margin = want.at(i).at("margin").as_number();
    EXPECT_NEAR(got[i].loss, want.at(i).at("loss").as_number(), tolerance) << i;
    EXPECT_NEAR(*got[i].reward_margin, margin, tolerance) << i;
    // In the first step rounding decides: all margins are zero.
    if (i == 0) continue;
    EXPECT_EQ(*got[i].reward_accuracy, want.at(i).at("accuracy").as_number()) << i;
  }
}

// Oracle: TRL's DPOTrainer in fp32, which differs from fp64 by 7e-7; another order of sums may
// differ by some times that. The formula in PyTorch in fp64; transformers computes rotary angles in
// fp32 there.
TEST(Dpo, ThreeSteps_GiveTheLossesAndRewardsOfTrl) {
  const TempFolder folder;
  const Json golden = Json::parse_file(kFolder + "/trl.json");
  TrainOptions o = dpo_run(folder / "fp32");
  expect_steps(steps_of(o), golden.at("steps"), 1e-5);
  o.out = folder / "fp64";
  o.dtype = "fp64";
  expect_steps(steps_of(o), golden.at("steps_in_fp64"), 2e-6);
}

/// Layouts of a batch of three pairs: with dp 2, the ranks have one and two.
std::vector<TrainOptions> layouts() {
  std::vector<TrainOptions> all;
  const auto add = [&](const auto& change) {
    TrainOptions o = dpo_run("");
    o.batch_size = 3;
    change(o);
    all.push_back(o);
  };
  add([](TrainOptions& o) { o.tp = 2; });
  add([](TrainOptions& o) { o.tp = 2, o.sequence_parallel = true; });
  add([](TrainOptions& o) { o.pp = 2, o.micro_batch_size = 1; });
  add([](TrainOptions& o) { o.dp = 2, o.micro_batch_size = 1; });
  add([](TrainOptions& o) { o.dp = 2, o.zero = 1; });
  add([](TrainOptions& o) { o.dp = 2, o.fsdp = true, o.tp = 2; });
  add([](TrainOptions& o) { o.micro_batch_size = 1, o.recompute = "full"; });
  return all;
}

// Oracle: the run on one rank. In fp64 only the order of sums differs.
TEST(Dpo, AnyLayout_TrainsAsOneRankDoes) {
  const TempFolder folder;
  TrainOptions one = dpo_run(folder / "one");
  one.batch_size = 3;
  one.dtype = "fp64";
  const auto want = steps_of(one);
  EXPECT_GT(std::fabs(want[1].loss - want[0].loss), 1e-3);
  int number = 0;
  for (TrainOptions o : layouts()) {
    o.dtype = "fp64";
    o.out = folder / str("run", number++);
    const auto got = steps_of(o);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9) << number << " step " << i;
      EXPECT_NEAR(*got[i].reward_margin, *want[i].reward_margin, 1e-9) << number << " step " << i;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-8) << number << " step " << i;
      EXPECT_EQ(got[i].tokens, want[i].tokens);
    }
  }
}

/// A run of adapters with dropout; their steps are large enough for it to show.
TrainOptions with_dropout(TrainOptions o) {
  o.lora = 2;
  o.lora_dropout = 0.5;
  o.lr = 3e-2;
  o.dtype = "fp64";
  return o;
}

// Oracles: the run on one rank, in fp64; the loss of the first step, when the adapters are zero and
// the policy is the reference; the run without dropout, which differs from then on.
TEST(Dpo, AdaptersWithDropout_TrainOnAnyLayoutAsOnOneRank) {
  const TempFolder folder;
  TrainOptions one = with_dropout(dpo_run(folder / "one"));
  one.batch_size = 3;
  const auto want = steps_of(one);
  EXPECT_NEAR(want[0].loss, std::log(2), 1e-12);
  one.lora_dropout = 0;
  one.out = folder / "none";
  const auto none = steps_of(one);
  for (size_t i = 1; i < none.size(); ++i) {
    EXPECT_GT(std::fabs(*want[i].reward_margin - *none[i].reward_margin), 1e-4) << i;
  }
  int number = 0;
  for (const TrainOptions& layout : layouts()) {
    TrainOptions o = with_dropout(layout);
    o.out = folder / str("run", number++);
    const auto got = steps_of(o);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9) << number << " step " << i;
      EXPECT_NEAR(*got[i].reward_margin, *want[i].reward_margin, 1e-9) << number << " step " << i;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-8) << number << " step " << i;
    }
  }
}

// Oracle: the run on one rank with whole logits.
TEST(Dpo, AdaptersWithTheLossInParts_TrainAsWithWholeLogits) {
  const TempFolder folder;
  TrainOptions one = with_dropout(dpo_run(folder / "one"));
  one.batch_size = 3;
  const auto want = steps_of(one);
  int number = 0;
  for (TrainOptions o : layouts()) {
    o = with_dropout(o);
    o.out = folder / str("run", number++);
    TrainSetup setup = make_setup(o, 0);
    setup.layout.head_loss.most_bytes = 1;
    test::on_world(setup.layout.num_ranks(), [&](World& world) { Trainer(setup, world).run(); });
    const auto got = read_metrics(o.out + "/metrics.jsonl");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9) << number << " step " << i;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-8) << number << " step " << i;
    }
  }
}

// Oracle: the distance of one rank in bf16 from fp64 (tests/support/rounding.h).
TEST(Dpo, AnyLayoutInBf16_IsAsNearToFp64AsOneRank) {
  const TempFolder folder;
  const auto run = [&](TrainOptions o, const std::string& name, const std::string& dtype) {
    o.batch_size = 3;
    o.dtype = dtype;
    o.out = folder / name;
    return steps_of(o);
  };
  const auto exact = run(dpo_run(""), "fp64", "fp64");
  const auto one = run(dpo_run(""), "one", "bf16");
  double error = 0;
  double largest = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error = std::fmax(error, std::fabs(one[i].loss - exact[i].loss));
    largest = std::fmax(largest, std::fabs(exact[i].loss));
  }
  const double bound = test::rounding_bound(error, test::unit_roundoff(c10::kBFloat16) * largest);
  int number = 0;
  for (const TrainOptions& o : layouts()) {
    const auto got = run(o, str("run", number++), "bf16");
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(got[i].loss, exact[i].loss, bound) << number << " step " << i;
    }
  }
}

// If the resumed run computed the reference with its own weights, its margins would begin at zero.
TEST(Dpo, ResumedRun_EqualsTheUninterruptedOneToTheBit) {
  const TempFolder folder;
  TrainOptions o = dpo_run(folder / "whole");
  o.shuffle = true;
  o.dp = 2;
  o.steps = 4;
  o.eval_data = {kFolder + "/pairs.jsonl"};
  const auto want = steps_of(o);
  o.out = folder / "parts";
  o.steps = 2;
  cleave_train(o);
  o.steps = 4;
  o.model = TrainOptions{}.model;
  o.resume = true;
  const auto got = steps_of(o);
  ASSERT_EQ(got.size(), 4U);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].loss, want[i].loss) << i;
    EXPECT_EQ(*got[i].reward_margin, *want[i].reward_margin) << i;
  }
  EXPECT_EQ(*got[3].eval_loss, *want[3].eval_loss);

  std::ofstream(folder / "other.jsonl")
      << R"({"prompt": "a", "chosen": "b", "rejected": "c"})" << '\n';
  o.data = {folder / "other.jsonl"};
  const Error error = thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("no reference log-probabilities for --data"));
}

// Oracle: the run without interruption.
TEST(Dpo, RunResumedOnceWithoutEvaluationData_IsEvaluatedAgainLater) {
  const TempFolder folder;
  TrainOptions o = dpo_run(folder / "whole");
  o.eval_data = o.data;
  const auto want = steps_of(o);
  o.out = folder / "parts";
  o.steps = 1;
  cleave_train(o);
  o.resume = true;
  for (o.steps = 2; o.steps <= 3; ++*o.steps) {
    o.eval_data = *o.steps == 2 ? std::vector<std::string>{} : o.data;
    cleave_train(o);
  }
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").back().eval_loss, want.back().eval_loss);
}

// The reference is computed without dropout, and the masks of a step do not depend on the start.
TEST(Dpo, ResumedRunWithDropout_EqualsTheUninterruptedOneToTheBit) {
  const TempFolder folder;
  TrainOptions o = with_dropout(dpo_run(folder / "whole"));
  o.eval_data = o.data;
  const auto want = steps_of(o);
  o.out = folder / "parts";
  o.steps = 2;
  cleave_train(o);
  o.steps = 3;
  o.resume = true;
  const auto got = steps_of(o);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].loss, want[i].loss) << i;
    EXPECT_EQ(*got[i].reward_margin, *want[i].reward_margin) << i;
  }
  EXPECT_EQ(*got.back().eval_loss, *want.back().eval_loss);
}

// Oracle: the run without interruption. The reference is not known yet when the signal arrives.
TEST(Dpo, RunStoppedBeforeItsFirstStep_ResumesToTheBit) {
  const TempFolder folder;
  TrainOptions o = dpo_run(folder / "whole");
  const auto want = steps_of(o);
  o.out = folder / "stopped";
  const TrainSetup setup = make_setup(o, 0);
  {
    const StopSignal stop;
    (void)std::raise(SIGTERM);
    run_ranks(1, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), SIGTERM); });
  }
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), 0U);
  o.model = TrainOptions{}.model;
  o.resume = true;
  const auto got = steps_of(o);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].loss, want[i].loss) << i;
    EXPECT_EQ(*got[i].reward_margin, *want[i].reward_margin) << i;
  }
}

// Oracle: rewards are zero as long as the weights are those of the reference model. A reference of
// another pair would give another loss. Each second batch of four of the six pairs begins an epoch.
TEST(Dpo, WeightsThatStay_GiveTheLossOfAMarginOfZeroForEveryPair) {
  const TempFolder folder;
  TrainOptions o = dpo_run(folder / "run");
  o.dtype = "fp64";
  o.lr = 0;
  o.shuffle = true;
  o.batch_size = 4;
  o.dp = 3;
  o.steps = 5;
  o.eval_data = {kFolder + "/pairs.jsonl"};
  const auto steps = steps_of(o);
  for (const StepMetrics& m : steps) {
    EXPECT_NEAR(m.loss, std::log(2), 1e-9);
    EXPECT_NEAR(*m.reward_margin, 0, 1e-9);
  }
  EXPECT_NEAR(*steps.back().eval_loss, std::log(2), 1e-9);
}

// Oracle: the next step's training loss, since each batch is the whole data.
TEST(Dpo, Evaluation_GivesTheLossAndAccuracyOfTheNextStep) {
  const TempFolder folder;
  TrainOptions o = dpo_run(folder / "run");
  o.dtype = "fp64";
  o.batch_size = 6;
  o.pp = 2;
  o.eval_data = o.data;
  o.eval_every = 1;
  const auto steps = steps_of(o);
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    EXPECT_NEAR(*steps[i].eval_loss, steps[i + 1].loss, 1e-12);
    EXPECT_NEAR(*steps[i].eval_accuracy, *steps[i + 1].reward_accuracy, 1e-12);
  }
}

// The weights fit into fp32, and their fp16 copies are infinite: so are the logits.
TEST(Dpo, ReferenceThatOverflowsFp16_IsRefusedBeforeTheFirstStep) {
  const TempFolder folder;
  const std::string config = read_file(kFolder + "/config.json");
  test::write_model_folder(folder / "model", config, test::tensors_of(config), 1e6);
  TrainOptions o = dpo_run(folder / "run");
  o.model = folder / "model";
  o.tokenizer = kFolder;
  o.dtype = "fp16";
  for (const int ranks : {1, 2}) {
    o.out = folder / str("run", ranks);
    o.tp = ranks;
    const Error error = thrown_by([&] { cleave_train(o); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_STREQ(error.what(),
                 "the reference log-probabilities of pair 1 of 6 of --data are not finite, so no "
                 "step was made; the activations overflow fp16: give --dtype bf16 or fp32");
    EXPECT_TRUE(list_checkpoints(o.out).empty());
  }
}

TEST(Dpo, DataThatIsNoJson_IsRefusedWithTheRowsThatAreExpected) {
  const TempFolder folder;
  std::ofstream(folder / "notes.txt") << "so it is\n";
  TrainOptions o = dpo_run(folder / "run");
  o.data = {folder / "notes.txt"};
  const Error error = thrown_by([&] { (void)make_setup(o, 0); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_EQ(error.what(), o.data.front() +
                              ":1: found 's', expected a value (byte 0); preferences are JSONL, "
                              "whose lines are objects with \"chosen\" and \"rejected\"");
}

TEST(Dpo, OptionsThatDoNotFit_AreRefused) {
  const TempFolder folder;
  const auto refusal = [&](const auto& change) {
    TrainOptions o = dpo_run(folder / "run");
    change(o);
    const Error error = thrown_by([&] { (void)make_setup(o, 0); });
    EXPECT_EQ(error.code(), Code::kUsage);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal([](TrainOptions& o) { o.model = "bert-tiny"; }),
              HasSubstr("--task dpo does not fit this model, which is trained for mlm"));
  EXPECT_THAT(refusal([](TrainOptions& o) { o.train_on = "all"; }), HasSubstr("--train-on all"));
  EXPECT_THAT(refusal([](TrainOptions& o) { o.task = "lm"; }),
              HasSubstr("--dpo-beta needs --task dpo"));
}

}  // namespace
}  // namespace cleave::dpo_test
