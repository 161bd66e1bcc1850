#include "cleave/generate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <malloc.h>
#include <nlohmann/json.hpp>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/generate/options.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/level.h"
#include "tests/support/memory.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::evaluate_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

/// Copies a folder and makes the last number of its safetensors file NaN.
std::string with_nan(const fs::path& from, const fs::path& to, const std::string& file) {
  fs::copy(from, to);
  const float nan = NAN;
  std::fstream out(to / file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(-static_cast<std::streamoff>(sizeof nan), std::ios::end);
  out.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  return to;
}

// The program ends with 9, as generate, train and eval --task dpo do.
TEST(Evaluate, ModelOrAdapterThatHoldsNaN_EndsWithTheSameNumericsError) {
  const TempFolder folder;
  const std::string model = test::golden_folder("llama-6heads");
  const std::string adapter = test::source_file("tests/golden/lora/llama-6heads");
  std::ofstream(folder / "rows.jsonl") << R"({"input_ids": [4, 5, 6, 7]})" << '\n';
  EvalOptions o;
  o.data = {folder / "rows.jsonl"};
  const auto expect_refused = [&] {
    for (const int tp : {1, 2}) {
      o.tp = tp;
      const Error error = test::thrown_by([&] { cleave_eval(o); });
      EXPECT_EQ(error.code(), Code::kNumerics);
      EXPECT_STREQ(error.what(), "the loss is not finite; check the weights of the model");
    }
  };
  o.model = model;
  o.adapter = with_nan(adapter, folder / "adapter", "adapter_model.safetensors");
  expect_refused();
  o.adapter = adapter;
  EXPECT_NO_THROW(cleave_eval(o));
  o.adapter.clear();
  o.model = with_nan(model, folder / "model", "model.safetensors");
  expect_refused();
}

/// Bytes by which the most resident memory grows during `work`.
uint64_t growth_of(const std::function<void()>& work) {
  ::malloc_trim(0);
  EXPECT_TRUE(test::reset_peak());
  const uint64_t before = test::resident_bytes("VmRSS");
  work();
  const uint64_t peak = test::resident_bytes("VmHWM");
  return peak - std::min(peak, before);
}

// The logits of 8,192 tokens and 32,000 classes take 1,000 MiB in fp32. In parts, those of a part
// take 192 MiB, and their exponentials as much.
TEST(Evaluate, LogitsOfManyClasses_AreNotInMemoryTogether) {
  if (test::kIsInstrumented) GTEST_SKIP() << "memory is not representative with a sanitizer";
  const TempFolder folder;
  std::ofstream(folder / "wide.json")
      << R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 16, "intermediate_size": 16,
             "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
             "max_position_embeddings": 8192, "tie_word_embeddings": false})";
  std::ofstream(folder / "short.jsonl") << R"({"input_ids": [4, 5, 6, 7]})" << '\n';
  nlohmann::json ids;
  for (int i = 0; i < 8192; ++i) ids.push_back(i * 3);
  std::ofstream(folder / "long.jsonl") << nlohmann::json{{"input_ids", ids}} << '\n';
  std::ofstream(folder / "pairs.jsonl") << nlohmann::json{{"prompt", "a"},
                                                          {"chosen", std::string(4000, 'b')},
                                                          {"rejected", std::string(4000, 'c')}}
                                        << '\n';
  TrainOptions train;
  train.model = folder / "wide.json";
  train.data = {folder / "short.jsonl"};
  train.batch_size = 1;
  train.steps = 1;
  train.out = folder / "run";
  cleave_train(train);
  EvalOptions o;
  o.model = train.out;
  o.seq_len = 8192;
  for (const std::string task : {"lm", "dpo"}) {
    o.task = task;
    o.data = {folder / (task == "lm" ? "long.jsonl" : "pairs.jsonl")};
    o.reference = task == "dpo" ? train.out : "";
    EXPECT_LT(growth_of([&] { cleave_eval(o); }), uint64_t{700} << 20) << task;
  }
}

// Closed form. Class 3 is neither in the data nor predicted, and class 2 is only predicted. The F1
// of the classes is 2/3, 1 and 0, as scikit-learn's f1_score with average="macro" has it.
TEST(ClassScore, FourSequences_HaveTheirF1) {
  const std::vector<int64_t> predicted{0, 1, 1, 2}, classes{0, 1, 1, 0};
  Tensor probabilities = at::full({4, 4}, 0.1, at::kDouble);
  for (int64_t row = 0; row < 4; ++row) {
    probabilities[row][predicted[static_cast<size_t>(row)]] = 0.7;
  }
  const ClassScore score = class_score(probabilities.log(), at::tensor(classes, at::kLong));
  EXPECT_NEAR(score.loss, -(3 * std::log(0.7) + std::log(0.1)) / 4, 1e-15);
  EXPECT_EQ(score.right, 3);
  EXPECT_NEAR(score.macro_f1, (2.0 / 3 + 1) / 3, 1e-15);
}

}  // namespace
}  // namespace cleave::evaluate_test
