#include "cleave/model/bert/bert.h"

#include <cstdlib>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/parallel/lora.h"
#include "tests/support/golden_model.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::bert_test {
namespace {

using test::largest_difference;

class BertGolden : public test::GoldenModel {
 protected:
  [[nodiscard]] test::GoldenRows rows_of(const std::string& prefix) const override {
    const std::string types = prefix + "token_type_ids";  // DistilBERT has none
    return {.ids = golden_.at(prefix + "input_ids"),
            .targets = golden_.at(prefix + "labels"),
            .mask = golden_.at(prefix + "attention_mask").to(at::kBool),
            .types = golden_.contains(types) ? golden_.at(types) : Tensor()};
  }
};

TEST_P(BertGolden, ForwardAndBackward_GiveHiddenStatesLogitsLossAndEveryGradient) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const test::GoldenRows rows = rows_of("input.");
    const auto [logits, loss] = pass(*model, mesh, rows);
    EXPECT_LE(largest_difference(logits, own(golden_.at("logits"), mesh["dp"])), 5e-5);
    EXPECT_NEAR(loss, golden_.at("loss").item<float>(), 1e-5);
    expect_gradients(*model, "grad");

    const at::NoGradGuard no_grad;
    Context context;
    context.token_types = own(rows.types, mesh["dp"]);
    const DTensor ids(own(rows.ids, mesh["dp"]), mesh["tp"], Replicate{});
    const Tensor hidden = dynamic_cast<Bert&>(*model).hidden(ids, context).full_tensor();
    EXPECT_LE(largest_difference(hidden, own(golden_.at("hidden"), mesh["dp"])), 5e-5);
  });
}

TEST_P(BertGolden, SequencesOfUnequalLength_GiveTheirLogitsLossAndGradients) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const test::GoldenRows rows = rows_of("pad.input.");
    const auto [logits, loss] = pass(*model, mesh, rows);
    // Logits at padding do not count; a classifier's logits are of whole sequences.
    const bool by_place = logits.dim() == 3;
    const Tensor real = by_place ? own(rows.mask, mesh["dp"]) : at::ones({1, 1}, at::kBool);
    expect_padded_logits(logits, real, mesh["dp"]);
    EXPECT_NEAR(loss, golden_.at("pad.loss").item<float>(), 1e-5);
    expect_gradients(*model, "pad.grad");
  });
}

TEST_P(BertGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adamw", test::kGoldenAdamW, 1e-3, 0);
}

/// Goldens with a batch that has the pad id among the real ids.
class PadIdBertGolden : public BertGolden {};
TEST_P(PadIdBertGolden, PadIdAmongTheIds_GetsNoGradientFromTheLookUp) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const double loss = pass(*model, mesh, rows_of("padid.input.")).second;
    EXPECT_NEAR(loss, golden_.at("padid.loss").item<float>(), 1e-5);
    expect_gradients(*model, "padid.grad");
  });
}

/// Goldens with clipped training steps.
class ClippedBertGolden : public BertGolden {};
TEST_P(ClippedBertGolden, ThreeClippedSteps_GiveTheirWeights) {
  expect_three_steps("clip", test::kGoldenAdamW, 1e-3, 0.1);
}

/// Goldens with training steps of SGD.
class DescendingBertGolden : public BertGolden {};
TEST_P(DescendingBertGolden, ThreeStepsOfGradientDescent_GiveTheirWeights) {
  expect_three_steps("sgd", {.kind = OptimizerOptions::Kind::kSgd}, 0.1, 0);
}

std::vector<test::GoldenLayout> layouts_of(const std::vector<std::string>& goldens) {
  std::vector<test::GoldenLayout> out;
  for (const std::string& golden : goldens) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({.golden = golden, .tp = tp});
    for (const int tp : {2, 3}) {
      out.push_back({.golden = golden, .tp = tp, .sequence_parallel = true});
    }
    out.push_back({.golden = golden, .dp = 2});
    out.push_back({.golden = golden, .tp = 2, .dp = 2});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Layouts, BertGolden,
                         ::testing::ValuesIn(layouts_of({"bert-mlm", "bert-mlm-6heads", "bert-cls",
                                                         "roberta-mlm", "roberta-cls",
                                                         "distilbert-mlm", "distilbert-cls"})),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, PadIdBertGolden,
                         ::testing::ValuesIn(layouts_of({"bert-mlm", "bert-cls", "roberta-mlm",
                                                         "distilbert-mlm"})),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, ClippedBertGolden, ::testing::ValuesIn(layouts_of({"bert-mlm"})),
                         test::layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, DescendingBertGolden,
                         ::testing::ValuesIn(layouts_of({"bert-cls"})), test::layout_name);

std::unique_ptr<Model> bert(const std::string& architecture) {
  return make_model(Json::parse(R"({"model_type": "bert", "vocab_size": 11, "hidden_size": 8,
      "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
      "max_position_embeddings": 16, "architectures": [")" +
                                    architecture + "\"]}",
                                "config.json"));
}

// Oracle: 6 for each element of a trained matrix, bias or norm that a token uses and 12 K T for
// each head; 4 for each of a frozen matrix, whose gradient is not computed. Lookups, the pooler and
// the classifier do not read every token.
TEST(Bert, OperationsOfAStep_AreThoseOfItsTokens) {
  constexpr double kMatrices = 4 * 8 * 8 + 2 * 8 * 12;
  constexpr double kLayer = kMatrices + 5 * 8 + 12 + 4 * 8;
  constexpr double kWords = 8 * 8 + 8 * 11;
  constexpr double kTrunk = 2 * kLayer + 2 * 8;  // with the norm of the embeddings
  constexpr double kAttention = 2 * 12 * 8 * 5;
  constexpr double kAdapters = 2 * 2 * (4 * (8 + 8) + 2 * (8 + 12));  // of the layers
  const auto words = bert("BertForMaskedLM"), classes = bert("BertForSequenceClassification");
  const double of_words = 6 * (kTrunk + kWords + 3 * 8 + 11) + kAttention;
  EXPECT_DOUBLE_EQ(words->train_flops_per_token(5), of_words);
  EXPECT_DOUBLE_EQ(classes->train_flops_per_token(5), 6 * kTrunk + kAttention);
  for (const auto& model : {words.get(), classes.get()}) {
    attach_lora(*model, model->sequence(), {.rank = 2}, at::kFloat);
  }
  EXPECT_DOUBLE_EQ(words->train_flops_per_token(5),
                   of_words - 2 * (2 * kMatrices + kWords) + 6 * kAdapters);
  EXPECT_DOUBLE_EQ(classes->train_flops_per_token(5),
                   6 * kTrunk + kAttention - 4 * kMatrices + 6 * kAdapters);
}

TEST(RealMiniLm, HiddenStatesAndPooledToken_AreThoseOfTransformers) {
  CLEAVE_NEEDS_DATA();
  const char* folder = std::getenv("CLEAVE_MINILM");
  if (folder == nullptr) GTEST_SKIP() << "CLEAVE_MINILM is not set: it names the model's folder";
  const auto golden =
      test::read_tensors(test::data_folder() + "/goldens/real-minilm/goldens.safetensors");
  for (const int tp : {1, 2}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const at::NoGradGuard no_grad;
      const ModelFolder from = ModelFolder::open(folder);
      auto model = make_model(from.config);
      parallelize_module(*model, axis, model->plan());
      load_model(*model, from, at::kFloat);
      Context context;
      context.key_mask = golden.at("attention_mask").to(at::kBool);
      const DTensor ids(golden.at("input_ids"), axis, Replicate{});
      const DTensor hidden = (*model)(ids, context);
      const Tensor real = golden.at("attention_mask").unsqueeze(-1);
      EXPECT_LE(
          largest_difference(hidden.full_tensor() * real, golden.at("last_hidden_state") * real),
          5e-5);
      // The sentence embedding: the normalized mean over real tokens.
      const Tensor mean = (hidden.full_tensor() * real).sum(1) / real.sum(1);
      const Tensor sentence = mean / mean.norm(2, {1}, true);
      EXPECT_LE(largest_difference(sentence, golden.at("sentence_embedding")), 1e-5);
      const Tensor pooled = (*dynamic_cast<Bert&>(*model).pooler())(hidden, context).full_tensor();
      EXPECT_LE(largest_difference(pooled, golden.at("pooler_output")), 5e-5);
    });
  }
}

}  // namespace
}  // namespace cleave::bert_test
