#include "execute.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/generate/evaluate.h"
#include "cleave/report/metrics.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/golden.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace imdb_bert {
namespace {

using cleave::Code;

// Small enough for seconds: 128 reviews of 32 tokens, 8 steps.
ExecuteOptions small(const std::string& out) {
  const std::string data = cleave::test::data_folder();
  ExecuteOptions o;
  o.samples = 128;
  o.epochs = 2;
  o.layers = 2;
  o.dim = 40;
  o.heads = 5;  // uneven on 2 and 4 ranks
  o.bsz = 32;
  o.data = data + "/text/imdb/imdb-train.csv";
  o.test_data = data + "/text/imdb/imdb-test.csv";
  o.test_samples = 100;
  o.tokenizer_folder = data + "/models/bert-imdb";
  o.seq_len = 32;
  o.lr = 3e-3;
  o.dtype = "fp32";
  o.out = out;
  return o;
}

Result run(ExecuteOptions options, int tp, int dp) {
  options.ntasks = tp * dp;
  options.tp = tp;
  options.bsz /= dp;
  return execute(options);
}

// The classes that a saved model predicts for the test reviews, computed on one rank.
std::vector<int64_t> predictions(const ExecuteOptions& o) {
  const auto folder = cleave::ModelFolder::open(o.out);
  const auto model = cleave::make_model(folder.config);
  cleave::load_model(*model, folder, at::kFloat);
  std::vector<std::string> texts;
  cleave::for_each_text(o.out + "/test.csv",
                        [&](const cleave::Texts& row) { texts.push_back(row.first); });
  const auto tokenizer = cleave::load_tokenizer(folder.path);
  const auto ids =
      cleave::encode_batch(*tokenizer, texts, {},
                           {.truncation = cleave::Truncation::kOnlyFirst, .max_length = o.seq_len})
          .input_ids;
  const at::Tensor classes = cleave::scores_of(*model, cleave::Axis(), ids).argmax(-1);
  return {classes.data_ptr<int64_t>(), classes.data_ptr<int64_t>() + classes.numel()};
}

// Oracle: one rank. fp32 rounds at 6e-8. The two scores of a review differ by about 1, so that
// after 8 steps rounding changes at most one of 100 predictions.
TEST(RealImdbBert, TrainedOnAnyLayout_PredictsWhatOneRankDoes) {
  CLEAVE_NEEDS_DATA();
  const cleave::test::TempFolder folder;
  const ExecuteOptions one = small((folder / "one").string());
  const Result alone = run(one, 1, 1);
  const std::vector<int64_t> want = predictions(one);
  ASSERT_EQ(want.size(), 100U);
  const auto num_positive = std::count(want.begin(), want.end(), 1);
  EXPECT_GT(num_positive, 10);  // not one class for all reviews
  EXPECT_LT(num_positive, 90);
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {2, 2}}) {
    ExecuteOptions o = small((folder / cleave::str(tp, "x", dp)).string());
    const Result sharded = run(o, tp, dp);
    ASSERT_EQ(sharded.ranks.size(), static_cast<size_t>(tp * dp));
    const std::vector<int64_t> got = predictions(o);
    int64_t differ = 0;
    for (size_t i = 0; i < want.size(); ++i) differ += got[i] != want[i] ? 1 : 0;
    EXPECT_LE(differ, 1) << "tp " << tp << " dp " << dp;
    EXPECT_NEAR(sharded.accuracy, alone.accuracy, 0.01 + 1e-9) << "tp " << tp << " dp " << dp;
  }
}

// Oracle: arithmetic. Weights, gradients and two moments are 16 bytes per element; each of four
// ranks has a quarter of the matrices.
TEST(RealImdbBert, Table_ShowsMemoryTimeAndAccuracyOfEachRank) {
  CLEAVE_NEEDS_DATA();
  const cleave::test::TempFolder folder;
  ExecuteOptions o = small((folder / "run").string());
  o.samples = 32;
  o.epochs = 1;
  o.dim = 256;
  o.heads = 8;
  o.bsz = 8;
  o.test_samples = 8;
  o.dtype = "bf16";
  const Result one = run(o, 1, 1);
  o.out = (folder / "four").string();
  const Result four = run(o, 4, 1);
  const int64_t matrices = 4096 * 256 + (2 * 12 + 1) * 256 * 256 + 2 * 256;
  EXPECT_GT(one.ranks.at(0).peak_bytes, 16 * matrices);
  EXPECT_LT(one.ranks.at(0).peak_bytes, 40 * matrices);
  for (const RankResult& r : four.ranks) {
    EXPECT_GT(r.peak_bytes, 16 * matrices / 4) << r.rank;
    EXPECT_LT(r.peak_bytes, one.ranks.at(0).peak_bytes / 2) << r.rank;
    EXPECT_EQ(r.tp_rank, r.rank);
  }
  const std::string text = table(four);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(text.find("rank  tp rank  dp rank      memory       time  accuracy\n   0 "), 0U)
      << text;
}

// Oracle: the signature of the notebook's execute().
TEST(ImdbBert, Defaults_AreTheNotebooks) {
  const ExecuteOptions o;
  EXPECT_EQ(o.ntasks, 2);
  EXPECT_EQ(o.epochs, 1);
  EXPECT_EQ(o.samples, 1024);
  EXPECT_EQ(o.layers, 6);
  EXPECT_EQ(o.dim, 768);
  EXPECT_EQ(o.heads, 1);
  EXPECT_EQ(o.bsz, 1);
}

TEST(RealImdbBert, InvalidArguments_AreRefused) {
  CLEAVE_NEEDS_DATA();
  const cleave::test::TempFolder folder;
  const ExecuteOptions good = small((folder / "run").string());
  const auto code_of = [](ExecuteOptions o) {
    return cleave::test::thrown_by([&] { execute(o); }).code();
  };
  ExecuteOptions o = good;
  o.ntasks = 4;
  o.tp = 3;
  EXPECT_EQ(code_of(o), Code::kShape);
  o = good;
  o.heads = 3;  // do not divide 40
  EXPECT_EQ(code_of(o), Code::kFormat);
  o = good;
  o.tp = 8;
  o.ntasks = 8;  // more than heads
  EXPECT_EQ(code_of(o), Code::kShape);
  std::ofstream(folder / "run" / "metrics.jsonl") << "";
  EXPECT_EQ(code_of(good), Code::kUsage);
}

// Runs a command until `steps` lines are in the metrics of the run, then sends it SIGINT.
cleave::test::RunResult interrupted(const std::vector<std::string>& command, const std::string& run,
                                    int steps) {
  const std::string script = cleave::str(
      "\"$0\" \"$@\" & pid=$!; until [ \"$(cat ", run, "/metrics.jsonl 2>/dev/null | wc -l)\" -ge ",
      steps, " ]; do kill -0 $pid || break; sleep 0.01; done; kill -INT $pid; wait $pid");
  std::vector<std::string> words{"/bin/bash", "-c", script};
  words.insert(words.end(), command.begin(), command.end());
  return cleave::test::run_program(words);
}

// Oracle: the losses of the interrupted run, and the number of steps. A run that started again
// would have another learning rate from its second step on.
TEST(ImdbBert, InterruptedRun_ResumesAsItsLastLineAdvises) {
  const cleave::test::TempFolder folder;
  const std::string csv = folder / "reviews.csv", run = folder / "run";
  std::ofstream(csv) << "review,sentiment\ngood,positive\nbad,negative\n";
  const auto command = [&](const std::string& epochs, const std::string& layers) {
    return std::vector<std::string>{CLEAVE_EXAMPLE,
                                    "--data",
                                    csv,
                                    "--test_data",
                                    csv,
                                    "--tokenizer",
                                    "bytes",
                                    "--epochs",
                                    epochs,
                                    "--layers",
                                    layers,
                                    "--dim",
                                    "8",
                                    "--seq_len",
                                    "8",
                                    "--ntasks",
                                    "1",
                                    "--out",
                                    run};
  };
  const auto losses = [&] {
    std::vector<double> all;
    for (const auto& m : cleave::read_metrics(run + "/metrics.jsonl")) all.push_back(m.loss);
    return all;
  };
  const auto stopped = interrupted(command("1000000", "1"), run, 3);
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  const std::string advice = "resume with: the same options with --out " + run + " --resume\n";
  ASSERT_NE(stopped.out.find(advice), std::string::npos) << stopped.out;
  const std::vector<double> first = losses();
  ASSERT_GE(first.size(), 3U);

  const size_t epochs = first.size() / 2 + 2;  // of two steps
  auto again = command(std::to_string(epochs), "1");
  EXPECT_NE(
      cleave::test::run_program(again).err.find("already holds a run; resume it with --resume"),
      std::string::npos);
  again.emplace_back("--resume");
  const auto resumed = cleave::test::run_program(again);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("rank  tp rank"), std::string::npos) << resumed.out;
  std::vector<double> all = losses();
  EXPECT_EQ(all.size(), 2 * epochs);
  all.resize(first.size());
  EXPECT_EQ(all, first);

  auto others = command(std::to_string(epochs), "2");
  others.emplace_back("--resume");
  EXPECT_NE(cleave::test::run_program(others).err.find("has other sizes"), std::string::npos);
}

TEST(ImdbBert, NumbersOutsideTheirRange_ExitWith2AndName) {
  for (const char* flag :
       {"--lr=-1", "--epochs=-1", "--ntasks=0", "--heads=0", "--bsz=9223372036854775807",
        "--seq_len=1", "--lr=nan", "--lr=inf", "--seed=-1", "--seed=18446744073709551616"}) {
    const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--out", "x", flag});
    EXPECT_EQ(ran.exit_code, 2) << flag << ran.err;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_NE(ran.err.find(name + ": "), std::string::npos) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST(ImdbBert, WrongFlag_ExitsWith2InOneLine) {
  const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--out", "x", "--no_such_flag"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: The following argument was not expected: --no_such_flag\n");
}

}  // namespace
}  // namespace imdb_bert
