#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/version.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/file.h"
#include "cleave/report/metrics.h"
#include "cleave/report/record.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::trainer_test {
namespace {

using test::losses;
using test::TempFolder;

struct Layout {
  int tp, dp;
};
constexpr Layout kLayouts[] = {{2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}};

/// A training text: tiny Shakespeare if the test data is installed, else the license.
std::string text_file() {
  const std::string data = test::data_folder();
  return data.empty() ? test::source_file("LICENSE") : data + "/text/tinyshakespeare/input.txt";
}

constexpr int64_t kHidden = 24, kWide = 40, kLayers = 2;

/// Saves a small Llama with grouped, uneven heads; if `moved`, with each weight one ulp larger.
void make_model_folder(const std::string& folder, bool moved) {
  const nlohmann::ordered_json config = {
      {"model_type", "llama"},         {"vocab_size", 257},
      {"hidden_size", kHidden},        {"intermediate_size", kWide},
      {"num_hidden_layers", kLayers},  {"num_attention_heads", 6},
      {"num_key_value_heads", 2},      {"head_dim", 4},
      {"max_position_embeddings", 64}, {"tie_word_embeddings", true},
      {"initializer_range", 0.1}};
  run_ranks(1, [&](World&) {
    auto model = make_model(Json::parse(config.dump(), "config.json"));
    materialize(*model, {.seed = 5});
    if (moved) {
      for (const auto& p : model->parameters()) {
        const Tensor weight = p->leaf().detach();
        weight.copy_(
            at::nextafter(weight, at::full_like(weight, std::numeric_limits<float>::infinity())));
      }
    }
    Checkpoint checkpoint;
    checkpoint.model = model.get();
    checkpoint.files = byte_tokenizer_files();
    save_checkpoint(folder, checkpoint, {});
  });
}

TrainOptions small_run(const std::string& model, const std::string& out, const Layout& layout) {
  TrainOptions o;
  o.model = model;
  o.data = {text_file()};
  o.out = out;
  o.tp = layout.tp;
  o.dp = layout.dp;
  o.seq_len = 32;
  o.batch_size = 4;
  o.steps = 200;
  o.lr = 2e-3;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

std::string run_name(const std::string& root, const Layout& l) {
  return str(root, "/tp", l.tp, "_dp", l.dp);
}

// Oracle: the run on one rank. In fp64 only the order of sums differs.
TEST(Train, AnyLayoutInFp64_GivesTheLossesOfOneRankOver200Steps) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  const auto on = [&](const Layout& layout) {
    TrainOptions o = small_run(root + "/model", run_name(root, layout), layout);
    o.dtype = "fp64";
    return losses(o);
  };
  const std::vector<double> want = on({1, 1});
  ASSERT_EQ(want.size(), 200U);
  EXPECT_LT(want.back(), want.front() - 1);  // it learns, so later steps depend on earlier ones
  for (const Layout& layout : kLayouts) {
    const std::vector<double> got = on(layout);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-9)
          << "step " << i + 1 << " tp " << layout.tp << " dp " << layout.dp;
    }
  }
}

// Oracle: the run on one rank. The tolerance is its drift when every weight changes by one ulp.
TEST(Train, AnyLayoutInFp32_StaysWithinTheDriftOfOneUlp) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  make_model_folder(root + "/moved", true);
  const auto want = losses(small_run(root + "/model", root + "/one", {1, 1}));
  const auto moved = losses(small_run(root + "/moved", root + "/ulp", {1, 1}));
  // A logit sums over layers of four hidden-wide and three intermediate-wide products; the rounding
  // of K terms grows as sqrt(K).
  const double terms = kLayers * (4 * kHidden + 3 * kWide) + 257;
  const double early = std::numeric_limits<float>::epsilon() * std::sqrt(terms) * want.front();
  double drift = early;
  for (size_t i = 0; i < want.size(); ++i) drift = std::max(drift, std::abs(moved[i] - want[i]));
  for (const Layout& layout : kLayouts) {
    const auto got = losses(small_run(root + "/model", run_name(root, layout), layout));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], i < 5 ? early : 3 * drift)
          << "step " << i + 1 << " tp " << layout.tp << " dp " << layout.dp;
    }
  }
}

// Oracle: the lengths of the rows. With dp 3, one rank has two rows and another's are shorter.
TEST(Train, PaddedSequences_CountTheirTokensOnly) {
  const TempFolder folder;
  std::ofstream(folder / "rows.jsonl") << R"({"input_ids": [1, 2, 3, 4, 5]}
{"input_ids": [1, 2]}
{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}
{"input_ids": [1, 2, 3]}
)";
  TrainOptions o = test::small_run(folder);
  o.data = {folder / "rows.jsonl"};
  o.steps = 2;
  for (const auto& [layout, micro_batch] :
       {std::pair(Layout{1, 1}, 0), {{1, 1}, 1}, {{2, 1}, 0}, {{1, 2}, 1}, {{1, 3}, 0}}) {
    o.tp = layout.tp;
    o.dp = layout.dp;
    if (micro_batch > 0) o.micro_batch_size = micro_batch;
    o.out = folder / str("tp", layout.tp, "_dp", layout.dp, "_", micro_batch);
    const auto steps = test::steps_of(o);
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[0].tokens, 5 + 2 + 8 + 3) << o.out;
    EXPECT_EQ(steps[1].tokens, 2 * (5 + 2 + 8 + 3)) << o.out;
  }
}

// Oracle: the uninterrupted run, bit for bit: losses, weights and moments.
TEST(Train, ResumedInTheMiddleOfAnEpoch_ContinuesBitForBit) {
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{2, 2}}) {
    const TempFolder folder;
    const std::string root = folder.path();
    make_model_folder(root + "/model", false);
    TrainOptions whole = small_run(root + "/model", root + "/whole", layout);
    whole.steps = 12;
    const auto want = losses(whole);
    TrainOptions part = small_run(root + "/model", root + "/part", layout);
    part.steps = 12;
    part.save_every = 5;
    losses(part);
    // As after a crash in step 8: the checkpoint of step 10 and the end are gone.
    for (const int step : {10, 12})
      std::filesystem::remove_all(root + "/part/" + checkpoint_name(step));
    std::ofstream(root + "/part/latest") << checkpoint_name(5) << '\n';
    part.resume = true;
    EXPECT_EQ(losses(part), want);
    for (const char* stem : {"model", "optimizer"}) {
      const auto a =
          test::read_tensors(str(root, "/whole/", checkpoint_name(12), "/", stem, ".safetensors"));
      const auto b =
          test::read_tensors(str(root, "/part/", checkpoint_name(12), "/", stem, ".safetensors"));
      ASSERT_EQ(a.size(), b.size());
      for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
    }
  }
}

/// Runs `o` on several layouts with the batch, length and steps of a recorded training. Losses and
/// norms must equal the recorded ones.
void expect_recorded_run(TrainOptions o, const nlohmann::json& golden, const TempFolder& folder) {
  o.steps = golden["steps"];
  o.batch_size = golden["batch"];
  o.seq_len = golden["seq_len"];
  o.shuffle = false;
  o.schedule = "constant";
  o.warmup = 0;
  o.threads_per_rank = 1;
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{4, 1}, Layout{2, 2}}) {
    o.out = run_name(folder.path().string(), layout);
    o.tp = layout.tp;
    o.dp = layout.dp;
    cleave_train(o);
    const auto metrics = read_metrics(o.out + "/metrics.jsonl");
    ASSERT_EQ(metrics.size(), golden["losses"].size());
    for (size_t i = 0; i < metrics.size(); ++i) {
      EXPECT_NEAR(metrics[i].loss, golden["losses"][i].get<double>(), 1e-4) << "step " << i + 1;
      const double norm = golden["grad_norms"][i];
      EXPECT_NEAR(metrics[i].grad_norm, norm, 1e-4 * norm) << "step " << i + 1;
    }
  }
}

/// Writes the sequences of a recorded training on contexts: truncated to its length and padded with
/// the end id to the longest of their batch. Padding is masked in attention, but not in the labels.
void write_contexts(const std::string& from, const nlohmann::json& golden,
                    const Tokenizer& tokenizer, const std::string& to) {
  const size_t batch = golden["batch"];
  std::ifstream lines(from);
  std::ofstream rows(to);
  for (size_t step = 0; step < golden["steps"]; ++step) {
    std::vector<std::vector<int64_t>> ids;
    size_t longest = 0;
    for (std::string line; ids.size() < batch && std::getline(lines, line);) {
      ids.push_back(tokenizer.encode(nlohmann::json::parse(line)["context"].get<std::string>()));
      ids.back().resize(std::min<size_t>(ids.back().size(), golden["seq_len"]));
      longest = std::max(longest, ids.back().size());
    }
    if (step == 0) {
      EXPECT_EQ(nlohmann::json(ids), golden["first_batch_ids"]);
    }
    for (auto& row : ids) {
      std::vector<int64_t> mask(row.size(), 1);
      mask.resize(longest, 0);
      row.resize(longest, *tokenizer.special().eos);
      rows << nlohmann::json{{"input_ids", row}, {"labels", row}, {"attention_mask", mask}} << '\n';
    }
  }
}

// Oracle: a training loop of transformers from the same model and rows, recorded.
TEST(RealTraining, StoriesOnShakespeare_GiveTheRecordedLossesAndNorms) {
  CLEAVE_NEEDS_DATA();
  const std::string data = test::data_folder();
  const TempFolder folder;
  const auto golden =
      nlohmann::json::parse(std::ifstream(data + "/goldens/training/llama-text.json"));
  const auto tokenizer = load_tokenizer(data + "/models/stories260K");
  std::ifstream file(data + "/text/tinyshakespeare/input.txt");
  std::string text(golden["characters"].get<size_t>(), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto ids = tokenizer->encode(text, {.add_special = false});
  const int64_t batch = golden["batch"];
  const int64_t length = golden["seq_len"];
  const int64_t steps = golden["steps"];
  {
    std::ofstream rows((folder / "rows.jsonl").string());
    for (int64_t row = 0; row < batch * steps; ++row) {
      const auto first = ids.begin() + row * length;
      rows << nlohmann::json{{"input_ids", std::vector<int64_t>(first, first + length)}} << '\n';
    }
  }
  TrainOptions o;
  o.model = data + "/models/stories260K";
  o.data = {(folder / "rows.jsonl").string()};
  o.lr = 5e-4;
  o.decay_on = "all";
  expect_recorded_run(o, golden, folder);
}

// Oracle: the tutorial's loop in transformers: contexts in order, labels on padding too, Adam
// without clipping, no dropout.
TEST(RealTraining, Gpt2OnQuestionContexts_GivesTheRecordedLossesAndNorms) {
  CLEAVE_NEEDS_DATA();
  const std::string data = test::data_folder();
  const TempFolder folder;
  const auto golden =
      nlohmann::json::parse(std::ifstream(data + "/goldens/training/gpt2-squad.json"));
  const std::string model = folder / "model";
  std::filesystem::copy(data + "/models/gpt2-shakespeare", model);
  auto config = nlohmann::ordered_json::parse(std::ifstream(model + "/config.json"));
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) config[key] = 0;
  std::filesystem::remove(model + "/config.json");
  std::ofstream(model + "/config.json") << config;
  write_contexts(data + "/" + golden["data"].get<std::string>(), golden, *load_tokenizer(model),
                 folder / "rows.jsonl");
  TrainOptions o;
  o.model = model;
  o.data = {(folder / "rows.jsonl").string()};
  o.lr = 3e-4;
  o.optimizer = "adam";
  o.adam_betas[1] = 0.999;
  o.weight_decay = 0;
  o.clip = 0;
  expect_recorded_run(o, golden, folder);
}

// Oracle: one pass over the whole batch. Micro-batches change only the order of sums.
TEST(Train, MicroBatches_GiveTheLossesOfTheWholeBatch) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  TrainOptions o = small_run(root + "/model", root + "/whole", {1, 1});
  o.steps = 10;
  o.dtype = "fp64";
  const auto want = losses(o);
  o.out = root + "/micro";
  o.micro_batch_size = 3;
  const auto got = losses(o);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-11);
}

// fp16 has 11 bits: a few dozen successive roundings stay within 2 % of the loss.
TEST(Train, Fp16WithFp32Masters_FollowsFp32AndResumesBitForBit) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  TrainOptions o = small_run(root + "/model", root + "/fp32", {1, 1});
  o.steps = 10;
  const auto want = losses(o);
  o.dtype = "fp16";
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{1, 2}}) {
    o.out = run_name(root + "/fp16", layout);
    o.tp = layout.tp;
    o.dp = layout.dp;
    const auto got = losses(o);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.02 * want[i]);
  }
  o.tp = o.dp = 1;
  o.out = root + "/whole";
  o.save_every = 4;
  const auto whole = losses(o);
  std::filesystem::remove_all(o.out + "/step_00000010");
  std::filesystem::remove_all(o.out + "/step_00000008");
  std::ofstream(o.out + "/latest") << "step_00000004\n";
  o.resume = true;
  EXPECT_EQ(losses(o), whole);
}

/// The whole time of the measured step in a run's report, in milliseconds.
double step_ms_of(const std::string& run) {
  double sum_s = 0;
  for (const auto& [kind, seconds] : read_record(run).step_time) sum_s += seconds;
  return sum_s * 1e3;
}

// Oracle: step_ms in metrics.jsonl. Evaluation and saves take longer than the steps.
TEST(Train, StepTimeInTheReport_IsTheMeanOfTheMeasuredSteps) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  TrainOptions o = small_run(root + "/model", root + "/run", {1, 1});
  std::ofstream(root + "/eval.txt") << std::string(32 * 400, 'e');
  o.eval_data = {root + "/eval.txt"};
  o.eval_every = 1;
  o.save_every = 4;
  for (const int steps : {6, 12}) {
    o.out = str(root, "/run", steps);
    o.steps = steps;
    losses(o);
    const auto metrics = read_metrics(o.out + "/metrics.jsonl");
    double sum_ms = 0;
    const int last = std::min(steps, 10);
    for (int step = 2; step < last; ++step) sum_ms += metrics[static_cast<size_t>(step)].step_ms;
    const double mean_ms = sum_ms / (last - 2);
    // The clock runs inside the time of the step.
    EXPECT_LE(step_ms_of(o.out), 1.0001 * mean_ms) << steps;
    EXPECT_GE(step_ms_of(o.out), 0.3 * mean_ms) << steps;
    // The forecast has the same kinds.
    const NamesAndSeconds forecast = read_record(o.out).step_forecast;
    const NamesAndSeconds measured = read_record(o.out).step_time;
    ASSERT_EQ(forecast.size(), measured.size());
    for (size_t k = 0; k < forecast.size(); ++k) EXPECT_EQ(forecast[k].first, measured[k].first);
    EXPECT_EQ(forecast[0].first, "matrix products");
    EXPECT_GT(forecast[0].second, 0);
    EXPECT_EQ(forecast[2], (std::pair<std::string, double>{"collectives", 0}));  // one rank
  }
}

// Oracle: the sizes of the model. AdamW in fp32 keeps a weight, a gradient and two moments of each
// parameter.
TEST(Train, Record_HasTheRunsSettingsMemoryAndLastStart) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  TrainOptions o = small_run(root + "/model", root + "/run", {1, 1});
  constexpr int64_t kHeads = 24, kKeys = 8, kVocabulary = 257;  // rows of queries, of keys, of ids
  constexpr int64_t kLayer = kHidden * (2 * kHeads + 2 * kKeys + 3 * kWide + 2);
  constexpr int64_t kParameters = kLayers * kLayer + kHidden * (1 + kVocabulary);
  o.command = "cleave train --out '</script>'";
  o.steps = 3;
  losses(o);
  o.steps = 5;
  o.resume = true;
  o.schedule = "wsd";
  o.min_lr = 1e-5;
  o.warmup = 1;
  o.decay_steps = 2;
  o.adam_betas = {0.8, 0.99};
  losses(o);
  const RunRecord record = read_record(o.out);
  EXPECT_EQ(record.outcome, "finished");
  EXPECT_EQ(record.num_steps, 5);
  EXPECT_EQ(record.first_step, 4);
  EXPECT_GT(record.wall_s, 0);
  const std::map<std::string, std::string> settings(record.settings.begin(), record.settings.end());
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"command", o.command},
                                          {"parameters", str(kParameters)},
                                          {"data files", text_file()},
                                          {"dtype", "fp32"},
                                          {"layout", "tp=1 x dp=1"},
                                          {"ranks", "1 (threads)"},
                                          {"schedule", "wsd"},
                                          {"minimum learning rate", "1e-05"},
                                          {"warm-up", "1 step"},
                                          {"decay", "2 steps"},
                                          {"Adam betas", "0.8, 0.99"},
                                          {"weight decay on", "matrices"},
                                          {"cleave version", std::string(version())}}) {
    EXPECT_EQ(settings.at(name), value);
  }
  for (const char* name : {"started", "host", "CPU"}) EXPECT_TRUE(settings.contains(name)) << name;
  ASSERT_EQ(record.memory.size(), 1U);
  const NamesAndBytes& bytes = record.memory[0].bytes;
  EXPECT_EQ(bytes[0], (std::pair<std::string, int64_t>{"weights", 4 * kParameters}));
  EXPECT_EQ(bytes[1], (std::pair<std::string, int64_t>{"gradients", 4 * kParameters}));
  EXPECT_EQ(bytes[2], (std::pair<std::string, int64_t>{"optimizer", 8 * kParameters}));
  const std::string page = read_file(o.out + "/report.html");
  EXPECT_NE(page.find("--out '&lt;/script&gt;'</td>"), std::string::npos);
}

TEST(Train, LearningRateThatDiverges_ReportsTheStepAndSavesNothing) {
  const TempFolder folder;
  const std::string root = folder.path();
  make_model_folder(root + "/model", false);
  TrainOptions o = small_run(root + "/model", root + "/run", {2, 1});
  o.lr = 1e30;
  o.clip = 0;
  o.warmup = 0;
  try {
    cleave_train(o);
    FAIL() << "it trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_NE(std::string(error.what()).find("in step "), std::string::npos) << error.what();
  }
  EXPECT_FALSE(newest_checkpoint(root + "/run"));
}

/// A run on the rows in file order, where each step does the same.
TrainOptions run_on(const TempFolder& folder, const std::string& name,
                    const std::vector<std::string>& rows) {
  TrainOptions o = test::small_run(folder);
  o.data = {folder / (name + ".jsonl")};
  std::ofstream file(o.data[0]);
  for (const std::string& row : rows) file << row << '\n';
  o.out = folder / name;
  o.shuffle = false;
  o.schedule = "constant";
  o.warmup = 0;
  o.lr = 1e-2;
  return o;
}

const std::string kRowA = R"({"input_ids": [5, 9, 7, 3]})", kRowB = R"({"input_ids": [8, 1, 6]})";
const std::string kNoLabels = R"({"input_ids": [2, 4, 5], "labels": [-100, -100, -100]})";

// Oracle: the run without those rows, to the bit. Also of a run that resumes before such a step.
TEST(Train, BatchesWithoutLabels_AreSkippedWithOneWarning) {
  const TempFolder folder;
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{1, 2}}) {
    const auto with = [&](std::string name, const std::vector<std::string>& rows) {
      TrainOptions o = run_on(folder, name += str(layout.tp, layout.dp), rows);
      o.tp = layout.tp;
      o.dp = layout.dp;
      o.batch_size = 2;
      return o;
    };
    TrainOptions plain = with("plain", {kRowA, kRowB, kRowB, kRowB});
    plain.steps = 2;
    const auto want = losses(plain);
    TrainOptions o =
        with("gaps", {kRowA, kRowB, kNoLabels, kNoLabels, kNoLabels, kNoLabels, kRowB, kRowB});
    o.steps = 1;
    cleave_train(o);
    o.resume = true;
    o.steps = 4;
    testing::internal::CaptureStderr();
    const auto got = test::steps_of(o);
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(
        warnings.starts_with("cleave: warning: the batch of step 2 has no labels (all are -100), "))
        << warnings;
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    ASSERT_EQ(got.size(), 4U);
    EXPECT_EQ(got[0].loss, want[0]);
    EXPECT_TRUE(std::isnan(got[1].loss) && std::isnan(got[2].loss));
    EXPECT_EQ(got[3].loss, want[1]);
    EXPECT_EQ(read_file(o.out + "/step_00000004/model.safetensors"),
              read_file(plain.out + "/step_00000002/model.safetensors"));
  }
}

TEST(Train, DataWithoutAnyLabel_FailsAndSavesNothing) {
  const TempFolder folder;
  const TrainOptions o = run_on(folder, "none", {kNoLabels});
  const Error error = test::thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_STREQ(error.what(),
               "--data has no labels: in all 4 steps they were -100, so no weight was changed");
  EXPECT_FALSE(newest_checkpoint(o.out));
}

// The fp16 copies of such weights are infinite, whatever the loss scale.
TEST(Train, RunWhoseStepsAllOverflowFp16_FailsAndSavesNothing) {
  const TempFolder folder;
  std::string config(test::kSmallestLlama);
  config.replace(config.rfind('}'), 1, R"(, "initializer_range": 1e3})");
  TrainOptions o = test::small_run(folder, config);
  o.dtype = "fp16";
  for (const int tp : {1, 2}) {
    o.tp = tp;
    o.out = folder / str("run", tp);
    const Error error = test::thrown_by([&] { cleave_train(o); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_STREQ(error.what(),
                 "all 4 steps overflowed fp16, so no weight was changed; the loss scale, which "
                 "halves with each of them, is now 4096. Give more --steps, or --dtype bf16");
    EXPECT_FALSE(newest_checkpoint(o.out));
  }
}

}  // namespace
}  // namespace cleave::trainer_test
