// cleave eval --task dpo. Oracles: the values of TRL, and the formula with log-probabilities from
// evaluations of single sequences.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/generate/options.h"
#include "cleave/text/json.h"
#include "cleave/text/jsonl.h"
#include "cleave/train/options.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::evaluate_pairs_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

const std::string kFolder = test::source_file("tests/golden/dpo");
constexpr double kBeta = 0.5;

Json result_of(EvalOptions options) {
  options.json = true;
  options.threads_per_rank = 1;
  ::testing::internal::CaptureStdout();
  cleave_eval(options);
  return Json::parse(::testing::internal::GetCapturedStdout(), "stdout");
}

EvalOptions eval_of(const std::string& model, const std::string& pairs) {
  EvalOptions o;
  o.model = model;
  o.data = {pairs};
  o.task = "dpo";
  o.dpo_beta = kBeta;
  o.seq_len = 64;
  return o;
}

/// The run of tests/golden/make_dpo.py.
TrainOptions train_on_pairs(const std::string& out, int64_t steps) {
  TrainOptions o;
  o.model = kFolder;
  o.task = "dpo";
  o.dpo_beta = kBeta;
  o.data = {kFolder + "/pairs.jsonl"};
  o.shuffle = false;
  o.out = out;
  o.seq_len = 64;
  o.batch_size = 2;
  o.steps = steps;
  o.lr = 3e-3;
  o.schedule = "constant";
  o.warmup = 0;
  o.weight_decay = 0;
  o.clip = 0;
  o.threads_per_rank = 1;
  return o;
}

/// A file with the rows [begin, end) of pairs.jsonl.
std::string rows_of_pairs(const TempFolder& folder, int begin, int end) {
  std::ifstream pairs(kFolder + "/pairs.jsonl");
  const std::string path = folder / str("pairs", begin, ".jsonl");
  std::ofstream out(path);
  std::string line;
  for (int i = 0; std::getline(pairs, line); ++i) {
    if (begin <= i && i < end) out << line << '\n';
  }
  return path;
}

// Oracle: TRL, whose next step's batch is held out of the steps before. In fp32 it differs from
// fp64 by 7e-7; another order of sums may differ by some times that.
TEST(EvaluatePairs, BatchThatARunHasNotSeen_GivesLossMarginAndAccuracyOfTrl) {
  const TempFolder folder;
  const Json steps = Json::parse_file(kFolder + "/trl.json").at("steps");
  for (const int step : {1, 2}) {
    const std::string run = folder / str("run", step);
    cleave_train(train_on_pairs(run, step));
    EvalOptions o = eval_of(run, rows_of_pairs(folder, 2 * step, 2 * step + 2));
    o.reference = kFolder;
    const Json want = steps.at(static_cast<size_t>(step));
    for (const int tp : {1, 2, 3}) {
      o.tp = tp;
      const Json got = result_of(o);
      EXPECT_NEAR(got.at("loss").as_number(), want.at("loss").as_number(), 1e-5) << tp;
      EXPECT_NEAR(got.at("reward_margin").as_number(), want.at("margin").as_number(), 1e-5) << tp;
      EXPECT_EQ(got.at("reward_accuracy").as_number(), want.at("accuracy").as_number()) << tp;
      EXPECT_EQ(got.at("pairs").as_int(), 2);
    }
  }
}

/// The log-probability of the answer after the prompt, from an evaluation of its row of ids.
double log_prob(const std::string& model, const TempFolder& folder, const std::string& prompt,
                const std::string& answer) {
  nlohmann::json row;
  for (const char c : prompt + answer) {
    const size_t place = row["input_ids"].size();
    const int byte = static_cast<unsigned char>(c);
    row["input_ids"].push_back(byte);
    row["labels"].push_back(place < prompt.size() ? -100 : byte);
  }
  row["input_ids"].push_back(256);  // the end token
  row["labels"].push_back(256);
  const std::string path = folder / "row.jsonl";
  std::ofstream(path) << row.dump() << '\n';
  EvalOptions o;
  o.model = model;
  o.data = {path};
  o.dtype = "fp64";
  const Json result = result_of(o);
  return -result.at("loss").as_number() * result.at("tokens").as_number();
}

// Oracle: the formula. In fp64 only the order of sums differs on one rank. Several ranks merge the
// adapter into blocks of the fp32 weights, whose last bit may differ: 2^-24 in each of 14 matrices,
// for two answers of up to 20 tokens, times beta. With --batch-size 4 the second batch is not full.
TEST(EvaluatePairs, Adapter_IsComparedWithItsBaseModelByTheFormula) {
  const TempFolder folder;
  const std::string run = folder / "run";
  TrainOptions train = train_on_pairs(run, 3);
  train.lora = 4;
  train.lr = 0.03;
  cleave_train(train);
  double loss = 0;
  double margin = 0;
  int64_t right = 0;
  JsonLines rows(kFolder + "/pairs.jsonl");
  int64_t count = 0;
  for (; const auto row = rows.next(); ++count) {
    const auto reward = [&](const char* key) {
      const std::string prompt = row->at("prompt").as_string();
      const std::string answer = row->at(key).as_string();
      return kBeta *
             (log_prob(run, folder, prompt, answer) - log_prob(kFolder, folder, prompt, answer));
    };
    const double of_pair = reward("chosen") - reward("rejected");
    loss += std::log1p(std::exp(-of_pair));
    margin += of_pair;
    right += of_pair > 0 ? 1 : 0;
  }
  EXPECT_GT(std::fabs(margin), 0.1);  // else a reward of zero would pass
  EvalOptions o = eval_of(run, kFolder + "/pairs.jsonl");
  o.dtype = "fp64";
  o.batch_size = 4;
  for (const int tp : {1, 2, 3}) {
    o.tp = tp;
    const Json got = result_of(o);
    const double tolerance = tp == 1 ? 1e-9 : 0x1p-24 * 14 * 2 * 20 * kBeta;
    EXPECT_NEAR(got.at("loss").as_number(), loss / static_cast<double>(count), tolerance) << tp;
    EXPECT_NEAR(got.at("reward_margin").as_number(), margin / static_cast<double>(count),
                tolerance);
    EXPECT_EQ(got.at("right").as_int(), right);
    EXPECT_EQ(got.at("pairs").as_int(), count);
  }
  // The same with the adapter beside its base model, and with the base model as the reference.
  o.tp = 1;
  o.model = kFolder;
  o.adapter = run;
  EXPECT_NEAR(result_of(o).at("loss").as_number(), loss / static_cast<double>(count), 1e-9);
}

// Oracle: the closed form of a margin of zero.
TEST(EvaluatePairs, ModelThatIsItsOwnReference_HasTheLossOfAMarginOfZero) {
  EvalOptions o = eval_of(kFolder, kFolder + "/pairs.jsonl");
  o.reference = kFolder;
  const Json got = result_of(o);
  EXPECT_NEAR(got.at("loss").as_number(), std::log(2), 1e-12);
  EXPECT_EQ(got.at("reward_margin").as_number(), 0);
  EXPECT_EQ(got.at("right").as_int(), 0);
}

TEST(EvaluatePairs, OptionsThatDoNotFit_AreRefused) {
  const TempFolder folder;
  const auto refusal = [&](const auto& change) {
    EvalOptions o = eval_of(kFolder, kFolder + "/pairs.jsonl");
    change(o);
    const Error error = thrown_by([&] { cleave_eval(o); });
    EXPECT_TRUE(error.code() == Code::kUsage || error.code() == Code::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal([](EvalOptions&) {}), HasSubstr("give --reference the model from which "));
  EXPECT_THAT(refusal([](EvalOptions& o) { o.task = "lm", o.reference = kFolder; }),
              HasSubstr("--reference needs --task dpo"));
  EXPECT_THAT(refusal([](EvalOptions& o) { o.task = ""; }), HasSubstr("--dpo-beta needs"));
  EXPECT_THAT(refusal([](EvalOptions& o) { o.task = "mlm"; }),
              HasSubstr("which is a model for another task"));
  EXPECT_THAT(refusal([&](EvalOptions& o) {
                std::ofstream(folder / "text.jsonl") << R"({"text": "a"})" << '\n';
                o.reference = kFolder;
                o.data = {folder / "text.jsonl"};
              }),
              HasSubstr("text.jsonl:1"));
}

}  // namespace
}  // namespace cleave::evaluate_pairs_test
