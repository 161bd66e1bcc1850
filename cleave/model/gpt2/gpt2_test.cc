#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/dry_axis.h"
#include "cleave/model/model.h"
#include "cleave/nn/kv_cache.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// What the goldens (model/golden_test.cc) do not cover: dropout, caches, options, sizes.
namespace cleave::gpt2_test {
namespace {

using test::largest_difference;
using test::on_ranks;
using test::thrown_by;
using test::Weights;

/// config.json of a small model, with some keys set.
Json config_with(const nlohmann::ordered_json& keys = {}) {
  nlohmann::ordered_json config = {{"model_type", "gpt2"}, {"vocab_size", 13}, {"n_embd", 24},
                                   {"n_layer", 2},         {"n_head", 6},      {"n_positions", 8},
                                   {"n_inner", 20}};
  for (const auto& [key, value] : keys.items()) config[key] = value;
  return Json::parse(config.dump(), "config.json");
}

std::unique_ptr<Model> model_on(const Axis& axis, const Json& config, const Weights& weights,
                                bool sequence_parallel = false) {
  auto model = make_model(config);
  parallelize_module(*model, axis, model->plan(sequence_parallel));
  test::fill(*model, weights, at::kDouble);
  return model;
}

Weights weights_of(const Json& config) {
  return test::weights_for(*make_model(config));
}

const Tensor kIds = test::ids({2, 5}, 13, 3);

Tensor logits_of(Model& model, const Axis& axis, const Tensor& ids, const Context& context = {}) {
  return model(DTensor(ids, axis, Replicate{}), context).full_tensor();
}

TEST(Gpt2, EachDropoutOfItsConfig_ChangesTheLogitsOfTraining) {
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) {
    nlohmann::ordered_json keys = {{"embd_pdrop", 0}, {"attn_pdrop", 0}, {"resid_pdrop", 0}};
    Context context;
    context.training = true;
    const Weights weights = weights_of(config_with());
    const auto plain = model_on(Axis(), config_with(keys), weights);
    keys[key] = 0.5;
    const auto dropping = model_on(Axis(), config_with(keys), weights);
    const Tensor want = logits_of(*plain, Axis(), kIds, context);
    EXPECT_LE(largest_difference(logits_of(*dropping, Axis(), kIds), want), 0) << key;
    EXPECT_GT(largest_difference(logits_of(*dropping, Axis(), kIds, context), want), 0.1) << key;
  }
}

// Oracle: one rank. All three dropouts are on, so a mask that depends on the layout is found.
TEST(Gpt2, TrainingWithDropout_IsTheSameOnEveryLayout) {
  const Json config = config_with({{"embd_pdrop", 0.2}, {"attn_pdrop", 0.3}, {"resid_pdrop", 0.4}});
  const Weights weights = weights_of(config);
  Context context;
  context.training = true;
  context.seed = 5;
  context.step = 3;
  context.first_sample = 4;
  const auto one = model_on(Axis(), config, weights);
  const Tensor want = logits_of(*one, Axis(), kIds, context);
  const Tensor upstream = test::numbers(want.sizes(), 9);
  (want * upstream).sum().backward();
  std::map<std::string, Tensor> grads;
  for (const auto& p : one->parameters()) grads.emplace(p->name(), p->leaf().grad());
  for (const int tp : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      on_ranks(tp, [&](const Axis& axis) {
        const auto model = model_on(axis, config, weights, sequence_parallel);
        const Tensor got = logits_of(*model, axis, kIds, context);
        EXPECT_LE(largest_difference(got, want), 1e-12);
        (got * upstream).sum().backward();
        finish_gradients(model->parameters(), axis);
        for (const auto& p : model->parameters()) {
          const Tensor grad = test::slice_of(*p, grads.at(p->name()));
          EXPECT_LE(largest_difference(p->leaf().grad(), grad), 1e-11) << p->name() << " tp=" << tp;
        }
      });
    }
  }
}

// Oracle: one pass over all tokens.
TEST(Gpt2, TokensThroughACache_ContinueThePositions) {
  const Json config = config_with();
  const Weights weights = weights_of(config);
  const Tensor want = logits_of(*model_on(Axis(), config, weights), Axis(), kIds).detach();
  on_ranks(3, [&](const Axis& axis) {
    const auto model = model_on(axis, config, weights);
    KvCache cache(5);
    Context context;
    context.cache = &cache;
    std::vector<Tensor> parts;
    for (const auto& [begin, count] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1}, {4, 1}}) {
      parts.push_back(logits_of(*model, axis, kIds.narrow(1, begin, count), context).detach());
    }
    EXPECT_LE(largest_difference(at::cat(parts, 1), want), 1e-12);
  });
}

// Oracle: the plain model with scaled query weights.
TEST(Gpt2, OtherScalesOfScores_AreThoseOfScaledQueries) {
  const Json plain = config_with();
  const Weights weights = weights_of(plain);
  Weights scaled = weights;
  for (const int64_t layer : {0, 1}) {
    for (const char* part : {"weight", "bias"}) {
      Tensor& t = scaled.at(str("transformer.h.", layer, ".attn.c_attn.", part));
      t = t.clone();
      t.narrow(-1, 0, 24).mul_(std::sqrt(4.0) / static_cast<double>(layer + 1));
    }
  }
  const Tensor want = logits_of(*model_on(Axis(), plain, scaled), Axis(), kIds).detach();
  const Json config =
      config_with({{"scale_attn_weights", false}, {"scale_attn_by_inverse_layer_idx", true}});
  for (const int tp : {1, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      const auto model = model_on(axis, config, weights);
      EXPECT_LE(largest_difference(logits_of(*model, axis, kIds), want), 1e-12);
    });
  }
}

TEST(Gpt2, SequenceLongerThanItsPositions_IsRefusedWithBothNumbers) {
  auto model = make_model(config_with());
  materialize(*model);
  const Error error = thrown_by([&] { logits_of(*model, Axis(), at::zeros({1, 9}, at::kLong)); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(), "a sequence of 9 tokens; the model has n_positions=8");
}

TEST(Gpt2, PlanThatSplitsOnlyPartOfAttention_IsRefused) {
  for (const Plan& plan :
       {Plan{{"h.*.attn.c_attn", Colwise{}}}, Plan{{"h.*.attn.c_proj", Rowwise{}}},
        Plan{{"h.*.attn.c_attn", Rowwise{}}, {"h.*.attn.c_proj", Rowwise{}}}}) {
    const auto model = make_model(config_with());
    const Error error = thrown_by([&] { parallelize_module(*model, dry_axis("tp", 0, 2), plan); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("c_attn and c_proj belong together"),
              std::string::npos)
        << error.what();
  }
  on_ranks(2, [](const Axis& axis) {
    const auto model = make_model(config_with());
    parallelize_module(
        *model, axis,
        {{"h.*.attn.c_attn", Colwise{.output = Replicate{}}}, {"h.*.attn.c_proj", Rowwise{}}});
    materialize(*model);
    const Error error = thrown_by([&] { logits_of(*model, axis, kIds); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("c_attn gives Replicate"), std::string::npos)
        << error.what();
  });
}

// Oracle: the published numbers of weights.
TEST(Gpt2Presets, PublishedSizes_HaveTheirWeightsAndSplitOverTwoRanks) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"gpt2", 124439808},
                                                              {"gpt2-medium", 354823168},
                                                              {"gpt2-large", 774030080},
                                                              {"gpt2-xl", 1557611200}};
  for (const auto& [name, weights] : sizes) {
    const auto model = make_model(preset_config(name, 50257));
    int64_t count = 0;
    for (const auto& p : model->parameters()) count += p->numel();
    EXPECT_EQ(count, weights) << name;
    parallelize_module(*model, dry_axis("tp", 1, 2), model->plan());
  }
  const auto xl = make_model(preset_config("gpt2-xl", 50257));
  parallelize_module(*xl, dry_axis("tp", 1, 2), xl->plan());
  for (const auto& p : xl->parameters()) {
    if (p->name() != "transformer.h.0.attn.c_attn.weight") continue;
    EXPECT_EQ(p->local_shape(), (std::vector<int64_t>{1600, 3 * 12 * 64}));  // 13 and 12 heads
  }
}

TEST(Gpt2Config, UnsupportedValues_AreRefusedByKeyAndValue) {
  const std::vector<std::pair<nlohmann::ordered_json, std::string>> wrong = {
      {{{"add_cross_attention", true}}, "\"add_cross_attention\" is true"},
      {{{"architectures", {"GPT2ForTokenClassification"}}}, "expected GPT2LMHeadModel"},
      {{{"n_head", 5}}, "\"n_embd\" is 24; it must be a multiple of n_head=5"},
      {{{"resid_pdrop", 1}}, "\"resid_pdrop\" is 1; expected a probability in [0, 1)"},
      {{{"activation_function", "tanh"}}, "'tanh' is unknown"},
      {{{"is_causal", false}}, "\"is_causal\" is false; attention to later tokens"},
      {{{"pad_token_id", 13}}, "\"pad_token_id\" is 13"}};
  for (const auto& [keys, text] : wrong) {
    const Error error = thrown_by([&, k = keys] { make_model(config_with(k)); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

// As by attribute_map of transformers' GPT2Config, where the usual key counts if the two differ.
TEST(Gpt2Config, UsualKeysOfTheSizes_AreReadToo) {
  const auto model = make_model(Json::parse(R"({"model_type": "gpt2", "vocab_size": 13,
    "hidden_size": 24, "n_embd": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 7})",
                                            "config.json"));
  const ModelFacts& facts = model->facts();
  EXPECT_EQ(facts.hidden, 24);
  EXPECT_EQ(facts.num_layers, 3);
  EXPECT_EQ(facts.num_heads, 6);
  EXPECT_EQ(facts.max_positions, 7);
  const Error error = thrown_by([&] { (void)make_model(config_with({{"hidden_size", 48}})); });
  EXPECT_NE(
      std::string(error.what()).find("\"hidden_size\" is 48; n_embd is 24; expected the same"),
      std::string::npos)
      << error.what();
}

// Small models often keep the default ids of GPT-2. transformers 5.19 runs them: no token has the
// id.
TEST(Gpt2Config, EndsAndBeginsOutsideTheVocabulary_AreDropped) {
  const auto model =
      make_model(config_with({{"bos_token_id", 50256}, {"eos_token_id", {50256, 2}}}));
  EXPECT_EQ(model->facts().eos_ids, std::vector<int64_t>{2});
  EXPECT_EQ(model->facts().bos_id, std::nullopt);
}

}  // namespace
}  // namespace cleave::gpt2_test
