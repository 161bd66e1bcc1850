// The sequence length that a run trained with is the default of eval and predict; eval keeps the
// documents of a run with --packing apart.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/generate/runnable.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/paths.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::seq_len_test {
namespace {

using nlohmann::json;
using test::TempFolder;

constexpr const char* kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,"num_attention_heads":2,
  "max_position_embeddings":48})";
constexpr const char* kBert =
    R"({"architectures":["BertForMaskedLM"],"model_type":"bert","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,"num_attention_heads":2,
  "max_position_embeddings":48,"initializer_range":0.5})";

class SeqLen : public testing::Test {
 protected:
  /// Trains on a file, which is the evaluation data too; returns its last line of metrics.
  StepMetrics train(const std::string& config, const std::string& task, const std::string& data,
                    const std::string& text, bool packing = false) {
    std::ofstream(folder_ / "sizes.json") << config;
    std::ofstream(folder_ / data) << text;
    TrainOptions o;
    o.model = folder_ / "sizes.json";
    o.task = task;
    o.data = o.eval_data = {folder_ / data};
    o.out = folder_ / "run";
    o.seq_len = 8;
    o.batch_size = 2;
    o.steps = 3;
    o.packing = packing;
    o.lr = 1e-2;
    o.dtype = "fp64";
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    printed([&] { cleave_train(o); });
    return read_metrics(o.out + "/metrics.jsonl").back();
  }

  [[nodiscard]] json eval(const std::string& data, int64_t seq_len) const {
    EvalOptions o;
    o.model = folder_ / "run";
    o.data = {folder_ / data};
    o.seq_len = seq_len;
    o.batch_size = 2;
    o.gemm = "mkl";
    o.json = true;
    return json::parse(printed([&] { cleave_eval(o); }));
  }

  [[nodiscard]] std::string predict(const std::string& text, int64_t seq_len) const {
    PredictOptions o;
    o.model = folder_ / "run";
    o.texts = {text};
    o.seq_len = seq_len;
    o.gemm = "mkl";
    return printed([&] { cleave_predict(o); });
  }

  static std::string printed(const std::function<void()>& action) {
    test::Captured out;
    action();
    return out.take();
  }

  TempFolder folder_;
};

// Oracles: the run's own evaluation, and the number of tokens: 400 bytes and an end token are 50
// sequences of 8 tokens, each with 7 next tokens.
TEST_F(SeqLen, EvalOfALanguageModel_RepeatsTheRunsEvaluation) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 23);
  const StepMetrics last = train(kLlama, "", "text.txt", text);
  const json own = eval("text.txt", 0);
  EXPECT_NEAR(own["loss"].get<double>(), *last.eval_loss, 1e-9);
  EXPECT_EQ(own["tokens"], 50 * 7);
  EXPECT_EQ(eval("text.txt", 40)["tokens"], 10 * 39);
}

// Documents of 4 and 3 bytes with an end token share a sequence, but have 4 and 3 next tokens;
// joined, each sequence of 8 would have 7.
TEST_F(SeqLen, EvalOfARunThatPacksDocuments_KeepsThemApart) {
  std::string rows;
  for (int i = 0; i < 20; ++i) {
    for (const std::string& text : {str("a ", i + 10), str("b ", i % 10)}) {
      rows += json{{"text", text}}.dump() + '\n';
    }
  }
  const StepMetrics last = train(kLlama, "", "texts.jsonl", rows, /*packing=*/true);
  const json own = eval("texts.jsonl", 0);
  EXPECT_NEAR(own["loss"].get<double>(), *last.eval_loss, 1e-9);
  EXPECT_EQ(own["tokens"], 20 * (4 + 3));
  EXPECT_EQ(eval("texts.jsonl", 4)["tokens"], 20 * (4 + 3));  // divided, but every token once
}

// The masks of a step depend on --seed, those of evaluation data do not.
TEST_F(SeqLen, EvalOfAMaskedModel_RepeatsTheRunsEvaluationWithAnySeed) {
  json config = json::parse(kBert);
  config["vocab_size"] = 2000;
  std::ofstream(folder_ / "sizes.json") << config.dump();
  std::string text;
  for (int i = 0; i < 60; ++i) text += str("line ", i, " of the text\n");
  std::ofstream(folder_ / "text.txt") << text;
  TrainOptions o;
  o.model = folder_ / "sizes.json";
  o.tokenizer = test::source_file("tests/golden/tokenizer/small/bert");
  o.data = o.eval_data = {folder_ / "text.txt"};
  o.out = folder_ / "run";
  o.seq_len = 8;
  o.batch_size = 2;
  o.steps = 1;
  o.seed = 7;
  o.dtype = "fp64";
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  printed([&] { cleave_train(o); });
  const StepMetrics last = read_metrics(o.out + "/metrics.jsonl").back();
  EXPECT_NEAR(eval("text.txt", 0)["loss"].get<double>(), *last.eval_loss, 1e-9);
}

TEST_F(SeqLen, EvalAndPredictOfAClassifier_TruncateAsTheRunDid) {
  const std::string rows =
      "text,label\n\"a long text that begins well and ends badly\",1\n"
      "\"another text, as long and of another kind\",0\n\"third\",1\n";
  const StepMetrics last = train(kBert, "classify", "rows.csv", rows);
  const json own = eval("rows.csv", 0);
  EXPECT_NEAR(own["loss"].get<double>(), *last.eval_loss, 1e-9);
  EXPECT_NEAR(own["accuracy"].get<double>(), *last.eval_accuracy, 1e-12);
  EXPECT_GT(std::abs(eval("rows.csv", 40)["loss"].get<double>() - *last.eval_loss), 1e-6);
  const std::string text = "a long text that begins well and ends badly";
  EXPECT_EQ(predict(text, 0), predict(text, 8));
  EXPECT_NE(predict(text, 0), predict(text, 40));
}

TEST_F(SeqLen, FolderThatDoesNotSay_HasTheDefaultOrTheModelsPositions) {
  test::write_model_folder(folder_ / "n", kLlama, test::tensors_of(kLlama));
  const Runnable runnable(folder_ / "n", "", "cpu");
  EXPECT_EQ(runnable.seq_len(0, 256), 48);
  EXPECT_EQ(runnable.seq_len(0, 32), 32);
  EXPECT_EQ(runnable.seq_len(16, 32), 16);
  EXPECT_EQ(test::thrown_by([&] { (void)runnable.seq_len(49, 256); }).code(), Code::kShape);
}

}  // namespace
}  // namespace cleave::seq_len_test
