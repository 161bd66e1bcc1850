// Averaged weights of whole runs (--ema). Oracle: the definition, from the weights of a run's
// checkpoints; and the evaluation of the averages as a model of their own.
#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/checkpoint/names.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::ema_test {
namespace {

using test::TempFolder;
using test::Tensors;
using testing::HasSubstr;

constexpr double kDecay = 0.75;
constexpr int kSteps = 4;

TrainOptions run_of(const TempFolder& folder, const std::string& name) {
  std::ofstream(folder / "config.json")
      << R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":16,
"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,
"head_dim":8,"max_position_embeddings":32,"tie_word_embeddings":false})";
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 200; ++i) text << "line " << i * i << " of the text\n";
  TrainOptions o;
  o.model = folder / "config.json";
  o.data = {folder / "text.txt"};
  o.eval_data = {folder / "text.txt"};
  o.out = folder / name;
  o.seq_len = 16;
  o.batch_size = 4;
  o.steps = kSteps;
  o.lr = 1e-2;
  o.save_every = 1;
  o.threads_per_rank = 1;
  return o;
}

Tensors weights_after(const TrainOptions& o, int step) {
  return test::read_tensors(o.out + "/" + checkpoint_name(step) + "/model.safetensors");
}

/// The averages as a model folder.
std::string converted(const TrainOptions& o) {
  const std::string folder = o.out + "-averages";
  (void)convert({.from = o.out, .to = folder, .ema = true});
  return folder;
}

// Rounding of four averages of numbers below 2.
constexpr double kTolerance = 4 * 0x1p-23;

TEST(Ema, Convert_WritesTheAverageOfAllSteps) {
  const TempFolder folder;
  for (const int layout : {0, 1, 2}) {
    TrainOptions o = run_of(folder, str("run", layout));
    o.ema = kDecay;
    o.dp = layout == 0 ? 1 : 2;
    o.zero = layout == 1 ? 1 : 0;
    o.fsdp = layout == 2;
    cleave_train(o);
    Tensors wanted = weights_after(o, 1);
    for (int step = 2; step <= kSteps; ++step) {
      for (auto& [name, weight] : weights_after(o, step)) {
        wanted.at(name) = wanted.at(name) * kDecay + weight * (1 - kDecay);
      }
    }
    const Tensors have = test::read_tensors(converted(o) + "/model.safetensors");
    ASSERT_EQ(have.size(), wanted.size());
    for (const auto& [name, average] : have) {
      EXPECT_EQ(average.scalar_type(), at::kFloat);
      EXPECT_LE(test::largest_difference(average, wanted.at(name)), kTolerance) << name;
      EXPECT_FALSE(at::equal(average, weights_after(o, kSteps).at(name))) << name;
    }
  }
}

// A learning rate of 0 trains nothing, so that the second run evaluates the averages themselves.
TEST(Ema, Evaluation_IsThatOfTheAverages) {
  const TempFolder folder;
  for (const bool is_sharded : {false, true}) {
    TrainOptions o = run_of(folder, str("run", is_sharded));
    o.ema = kDecay;
    o.dp = is_sharded ? 2 : 1;
    o.zero = is_sharded ? 1 : 0;
    cleave_train(o);
    TrainOptions still = run_of(folder, str("still", is_sharded));
    still.model = converted(o);
    still.steps = 1;
    still.lr = 0;
    cleave_train(still);
    const double loss = read_metrics(o.out + "/metrics.jsonl").back().eval_loss.value();
    const double wanted = read_metrics(still.out + "/metrics.jsonl").back().eval_loss.value();
    EXPECT_NEAR(loss, wanted, 1e-5);
  }
}

// Also with evaluations between the steps, and in bf16, where forward reads copies.
TEST(Ema, Averages_DoNotChangeTraining) {
  const TempFolder folder;
  for (const std::string dtype : {"fp32", "bf16"}) {
    TrainOptions with = run_of(folder, "with-" + dtype), without = run_of(folder, "plain-" + dtype);
    with.ema = kDecay;
    with.eval_every = 1;
    for (TrainOptions* o : {&with, &without}) {
      o->dtype = dtype;
      cleave_train(*o);
    }
    const Tensors wanted = weights_after(without, kSteps);
    for (const auto& [name, weight] : weights_after(with, kSteps)) {
      EXPECT_TRUE(at::equal(weight, wanted.at(name))) << name;
    }
  }
}

TEST(Ema, ResumedRun_HasTheAveragesOfAnUninterruptedOne) {
  const TempFolder folder;
  TrainOptions once = run_of(folder, "once"), parts = run_of(folder, "parts");
  for (TrainOptions* o : {&once, &parts}) {
    o->ema = kDecay;
    o->dtype = "fp64";  // the layouts differ in their roundings alone
    o->schedule = "constant";
    o->warmup = 0;
  }
  cleave_train(once);
  parts.steps = 2;
  cleave_train(parts);
  parts.steps = kSteps;
  parts.resume = true;
  parts.dp = 2;
  parts.fsdp = true;
  cleave_train(parts);
  const Tensors wanted = test::read_tensors(converted(once) + "/model.safetensors");
  for (const auto& [name, average] : test::read_tensors(converted(parts) + "/model.safetensors")) {
    EXPECT_LE(test::largest_difference(average, wanted.at(name)), 1e-9) << name;
  }
  parts.ema = 0;
  const Error left_out = test::thrown_by([&] { cleave_train(parts); });
  EXPECT_EQ(left_out.code(), Code::kUsage);
  EXPECT_THAT(left_out.what(), HasSubstr("has averaged weights, and this run has no --ema"));
}

// Oracle: the products of the averages that the definition gives for A and B, added to the base.
TEST(Ema, AveragesOfAdapters_AreMergedIntoTheBaseModel) {
  const TempFolder folder;
  TrainOptions base = run_of(folder, "base");
  base.steps = 1;
  cleave_train(base);
  TrainOptions o = run_of(folder, "run");
  o.model = base.out;
  o.ema = kDecay;
  o.lora = 2;
  o.lora_alpha = 3;
  o.dp = 2;
  o.zero = 1;
  o.steps = 2;
  cleave_train(o);
  o.steps = kSteps;
  o.resume = true;
  cleave_train(o);
  const auto adapter_after = [&](int step) {
    return test::read_tensors(o.out + "/" + checkpoint_name(step) + "/adapter_model.safetensors");
  };
  Tensors averages = adapter_after(1);
  for (int step = 2; step <= kSteps; ++step) {
    for (auto& [name, value] : adapter_after(step)) {
      averages.at(name) = averages.at(name) * kDecay + value * (1 - kDecay);
    }
  }
  Tensors wanted = weights_after(base, 1);
  const std::string prefix = "base_model.model.", a = "lora_A.weight", b = "lora_B.weight";
  int merged = 0;
  for (auto& [name, weight] : wanted) {
    const std::string stem = prefix + name.substr(0, name.rfind('.') + 1);
    if (!averages.contains(stem + a)) continue;
    weight = weight + averages.at(stem + b).matmul(averages.at(stem + a)) * 1.5;
    ++merged;
  }
  EXPECT_EQ(merged, 14);
  const Tensors have = test::read_tensors(converted(o) + "/model.safetensors");
  for (const auto& [name, weight] : have) {
    EXPECT_LE(test::largest_difference(weight, wanted.at(name)), 4 * kTolerance) << name;
  }
  // The last weights are others: a merge of them would not pass.
  (void)convert({.from = o.out, .to = o.out + "-last"});
  const Tensors last = test::read_tensors(o.out + "-last/model.safetensors");
  const std::string one = "model.layers.0.mlp.up_proj.weight";
  EXPECT_GT(test::largest_difference(last.at(one), wanted.at(one)), 100 * kTolerance);
  // The run has evaluated the averages.
  TrainOptions still = run_of(folder, "still");
  still.model = o.out + "-averages";
  still.steps = 1;
  still.lr = 0;
  cleave_train(still);
  EXPECT_NEAR(read_metrics(o.out + "/metrics.jsonl").back().eval_loss.value(),
              read_metrics(still.out + "/metrics.jsonl").back().eval_loss.value(), 1e-5);
}

TEST(Ema, WithoutAverages_ResumeAndConvertSaySo) {
  const TempFolder folder;
  TrainOptions o = run_of(folder, "run");
  cleave_train(o);
  const Error unconverted = test::thrown_by([&] { (void)converted(o); });
  EXPECT_EQ(unconverted.code(), Code::kFormat);
  EXPECT_THAT(unconverted.what(), HasSubstr("has no averaged weights; train with --ema"));
  EXPECT_FALSE(std::filesystem::exists(o.out + "-averages"));
  const std::string split = o.out + "-split";  // not of one file, and no checkpoint
  (void)convert({.from = o.out, .to = split, .format = ModelFormat::kOslo, .tp = 2});
  const Error other = test::thrown_by(
      [&] { (void)convert({.from = split, .to = o.out + "-averages", .ema = true}); });
  EXPECT_EQ(other.code(), Code::kFormat);
  EXPECT_THAT(other.what(), HasSubstr("is not a checkpoint of `cleave train`"));
  o.ema = kDecay;
  o.resume = true;
  const Error resumed = test::thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(resumed.code(), Code::kUsage);
  EXPECT_THAT(resumed.what(), HasSubstr("started without --ema"));
}

}  // namespace
}  // namespace cleave::ema_test
