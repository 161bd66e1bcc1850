#include "cleave/model/decoder/decoder.h"

#include <set>

#include <gmock/gmock.h>

#include "cleave/model/decoder/fused.h"
#include "cleave/parallel/lora.h"
#include "cleave/parallel/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

namespace cleave::decoder_test {
namespace {

using test::numbers;
using test::on_ranks;

std::unique_ptr<Model> mistral(const std::string& window) {
  return make_model(Json::parse(R"({"model_type": "mistral", "vocab_size": 11, "hidden_size": 8,
      "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 6, "sliding_window": )" +
                                    window + "}",
                                "config.json"));
}

// With 10 queries and a window of 4, the keys behind the window are a triangle of 6 x 6 in the
// triangle of 10 x 10. 12 operations for each pair and dim, 24 dims, 3 layers.
TEST(Decoder, OperationsOfAttention_AreThoseOfTheKeysInTheWindow) {
  const double all = mistral("null")->train_flops_per_token(10);
  EXPECT_EQ(mistral("10")->train_flops_per_token(10), all);
  const double skipped = (all - mistral("4")->train_flops_per_token(10)) * 10;
  EXPECT_NEAR(skipped, 12.0 * 24 * 3 * (6 * 6 / 2.0), 1e-6);
}

std::unique_ptr<Model> mixtral(const std::string& more) {
  return make_model(Json::parse(R"({"model_type": "mixtral", "vocab_size": 11, "hidden_size": 8,
      "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_local_experts": 3)" +
                                    more + "}",
                                "config.json"));
}

TEST(Decoder, NamesOfExperts_AreThoseOfTheFiles) {
  std::set<std::string> names;
  const auto model = mixtral("");
  for (const auto& p : model->parameters()) names.insert(p->name());
  const std::string block = "model.layers.0.block_sparse_moe.";
  EXPECT_TRUE(names.contains(block + "gate.weight"));
  for (const std::string part : {"w1", "w2", "w3"}) {
    EXPECT_TRUE(names.contains(block + "experts.2." + part + ".weight")) << part;
  }
}

// Oracle: 6 for each element of a trained matrix that a token uses, 4 for each of a frozen one,
// whose gradient is not computed. A token uses two of three experts. Rank 4 fits all matrices but
// the router, which all-linear leaves out.
TEST(Decoder, AdaptersOfExperts_HaveTheOperationsOfTheTokensExperts) {
  const auto model = mixtral("");
  const double all = model->train_flops_per_token(4);
  attach_lora(*model, model->sequence(), {.rank = 4}, at::kFloat);
  for (const auto& p : trained_of(model->parameters())) {
    EXPECT_EQ(p->name().find(".gate."), std::string::npos) << p->name();
  }
  const double attention = 2 * 8 * 8 + 2 * 8 * 4, experts = 2 * 3 * 8 * 12;
  const double adapters = 4 * (2 * (8 + 8) + 2 * (8 + 4) + 2 * 3 * (8 + 12));
  // The router and the head too are frozen.
  const double frozen = attention + experts + 3 * 8 + 8 * 11;
  EXPECT_NEAR(model->train_flops_per_token(4), all - 2 * frozen + 6 * adapters, 1e-9 * all);
}

// transformers adds the loss if output_router_logits is true; the default factor is its own.
TEST(Decoder, AuxiliaryLoss_IsThatOfTheConfig) {
  const std::string logits = R"(, "output_router_logits": true)";
  EXPECT_FALSE(mixtral("")->balance());
  EXPECT_FALSE(mixtral(R"(, "router_aux_loss_coef": 0.02)")->balance());
  EXPECT_FALSE(mixtral(logits + R"(, "router_aux_loss_coef": 0)")->balance());
  EXPECT_EQ(mixtral(logits)->balance()->coefficient, 0.001);
  const auto own = mixtral(logits + R"(, "router_aux_loss_coef": 0.02)")->balance();
  EXPECT_EQ(own->coefficient, 0.02);
  EXPECT_EQ(own->num_experts, 3);
  EXPECT_EQ(own->top_k, 2);
}

// transformers adds jitter in training only.
TEST(Decoder, JitterOfTheRouter_IsRefusedInTraining) {
  mixtral("")->check_trainable();
  const auto model = mixtral(R"(, "router_jitter_noise": 0.1)");
  const Error error = test::thrown_by([&] { model->check_trainable(); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), testing::HasSubstr("\"router_jitter_noise\" is 0.1"));
}

AttentionOptions fused_options() {
  return {.hidden = 6,
          .num_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 4,
          .rotary = RotaryOptions{.head_dim = 4, .theta = 100}};
}

/// The rows of a fused matrix as separate ones.
Tensor rows(const test::Weights& w, const std::string& name, int64_t begin, int64_t count) {
  return w.at(name).narrow(0, begin, count).clone();
}

// Oracle: Attention and Mlp, which have separate matrices, with the same rows.
TEST(FusedAttention, OnAnyNumberOfRanks_EqualsSeparateProjections) {
  const auto separate = [](const test::Weights& w, const Tensor& x) {
    Attention attention(fused_options());
    attention.name_tree();
    for (const auto& p : attention.parameters()) {
      const bool is_q = p->name() == "q_proj.weight", is_k = p->name() == "k_proj.weight";
      p->set_leaf(p->name() == "o_proj.weight" ? w.at("o_proj.weight").clone()
                  : is_q                       ? rows(w, "qkv_proj.weight", 0, 24)
                                               : rows(w, "qkv_proj.weight", is_k ? 24 : 32, 8));
    }
    return attention(DTensor(x, Axis(), Replicate{}), {}).local();
  };
  const Tensor x = numbers({2, 5, 6}, 1);
  FusedAttention whole(fused_options());
  const test::Weights weights = test::weights_for(whole);
  const Tensor want = separate(weights, x);
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [&](const Axis& axis) {
      FusedAttention attention(fused_options());
      parallelize_module(attention, axis, {{"qkv_proj", Colwise{}}, {"o_proj", Rowwise{}}});
      test::fill(attention, weights, at::kDouble);
      const Tensor got = attention(DTensor(x, axis, Replicate{}), {}).full_tensor();
      EXPECT_LE(test::largest_difference(got, want), 1e-12) << "tp=" << tp;
    });
  }
}

TEST(FusedAttentionAndMlp, StylesThatDoNotBelongTogether_AreRefused) {
  on_ranks(2, [](const Axis& axis) {
    FusedAttention attention(fused_options());
    FusedMlp mlp({.hidden = 6, .intermediate = 10});
    const auto refused = [&](Layer& layer, const Plan& plan, const std::string& names) {
      const Error error = test::thrown_by([&] { parallelize_module(layer, axis, plan); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_THAT(error.what(), testing::HasSubstr(names + " belong together"));
    };
    refused(attention, {{"qkv_proj", Colwise{}}}, "qkv_proj and o_proj");
    refused(mlp, {{"down_proj", Rowwise{}}}, "gate_up_proj and down_proj");
  });
}

}  // namespace
}  // namespace cleave::decoder_test
