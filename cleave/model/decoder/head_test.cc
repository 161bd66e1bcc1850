#include "cleave/model/decoder/head.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/golden_model.h"
#include "tests/support/thrown.h"

namespace cleave::decoder_head_test {
namespace {

using test::GoldenLayout;
using test::largest_difference;

/// Decoders with classes. Oracle: transformers' ...ForSequenceClassification (see GoldenModel).
class ClassifierGolden : public test::GoldenModel {
 protected:
  [[nodiscard]] test::GoldenRows rows_of(const std::string& prefix) const override {
    return {.ids = golden_.at(prefix + "input_ids"),
            .targets = golden_.at(prefix + "labels"),
            .mask = golden_.at(prefix + "attention_mask").to(at::kBool),
            .types = {}};
  }
};

TEST_P(ClassifierGolden, FullSequences_GiveLogitsLossAndEveryGradientWithAndWithoutAMask) {
  on_ranks([&](const Mesh& mesh) {
    test::GoldenRows rows = rows_of("input.");
    for (const bool has_mask : {true, false}) {
      if (!has_mask) rows.mask = Tensor();
      auto model = model_on(mesh["tp"]);
      const auto [logits, loss] = pass(*model, mesh, rows);
      EXPECT_LE(largest_difference(logits, own(golden_.at("logits"), mesh["dp"])), 5e-5);
      EXPECT_NEAR(loss, golden_.at("loss").item<float>(), 1e-5);
      expect_gradients(*model, "grad");
    }
  });
}

TEST_P(ClassifierGolden, SequencesOfUnequalLength_GiveTheirLogitsLossAndGradients) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const auto [logits, loss] = pass(*model, mesh, rows_of("pad.input."));
    EXPECT_LE(largest_difference(logits, own(golden_.at("pad.logits"), mesh["dp"])), 5e-5);
    EXPECT_NEAR(loss, golden_.at("pad.loss").item<float>(), 1e-5);
    expect_gradients(*model, "pad.grad");
  });
}

TEST_P(ClassifierGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adamw", test::kGoldenAdamW, 1e-3, 0);
}

std::vector<GoldenLayout> layouts() {
  std::vector<GoldenLayout> out;
  for (const std::string golden : {"llama-cls", "gpt2-cls"}) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({.golden = golden, .tp = tp});
    for (const int tp : {2, 3}) {
      out.push_back({.golden = golden, .tp = tp, .sequence_parallel = true});
    }
    out.push_back({.golden = golden, .dp = 2});
    out.push_back({.golden = golden, .tp = 2, .dp = 2, .sequence_parallel = true});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ClassifierGolden, ::testing::ValuesIn(layouts()),
                         test::layout_name);

/// A small config.json with this class and these further keys.
Json config_of(const std::string& type, const std::string& architecture,
               const std::string& more = "") {
  return Json::parse(str(R"({"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
      "model_type": ")",
                         type, R"(", "architectures": [")", architecture, "\"]", more, "}"),
                     "config.json");
}

TEST(DecoderHead, ClassifierConfig_NamesTheClassOfTransformers) {
  const auto class_of = [](const std::string& type, const std::string& architecture) {
    const Json config = classifier_config(config_of(type, architecture), {"no", "yes"});
    EXPECT_EQ(make_model(config)->task(), "classify");
    EXPECT_THAT(make_model(config)->facts().labels, ::testing::ElementsAre("no", "yes"));
    return config.at("architectures").at(size_t{0}).as_string();
  };
  EXPECT_EQ(class_of("llama", "LlamaForCausalLM"), "LlamaForSequenceClassification");
  EXPECT_EQ(class_of("qwen3", "Qwen3ForCausalLM"), "Qwen3ForSequenceClassification");
  EXPECT_EQ(class_of("gpt2", "GPT2LMHeadModel"), "GPT2ForSequenceClassification");
  // Gemma3ForSequenceClassification has images, too.
  EXPECT_EQ(class_of("gemma3_text", "Gemma3ForCausalLM"), "Gemma3TextForSequenceClassification");
}

TEST(DecoderHead, Labels_GiveTheTask) {
  const auto task_of = [](const std::string& more) {
    return make_model(config_of("llama", "LlamaForSequenceClassification", more))->task();
  };
  EXPECT_EQ(task_of(""), "classify");
  EXPECT_EQ(task_of(R"(, "num_labels": 1)"), "regression");
  EXPECT_EQ(make_model(config_of("llama", "LlamaForCausalLM"))->task(), "lm");
}

TEST(DecoderHead, OtherHeads_AreRefused) {
  for (const char* name : {"LlamaForTokenClassification", "LlamaForQuestionAnswering"}) {
    EXPECT_THAT(test::thrown_by([&] { (void)make_model(config_of("llama", name)); }).what(),
                ::testing::HasSubstr("the head is not supported"));
  }
}

TEST(DecoderHead, ClassifierWithExperts_HasNoAuxiliaryLoss) {
  const std::string more = R"(, "num_local_experts": 2, "output_router_logits": true)";
  EXPECT_TRUE(make_model(config_of("mixtral", "MixtralForCausalLM", more))->balance());
  EXPECT_FALSE(
      make_model(config_of("mixtral", "MixtralForSequenceClassification", more))->balance());
}

}  // namespace
}  // namespace cleave::decoder_head_test
