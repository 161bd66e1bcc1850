#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/plan.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/unsplit.h"

// The gradient of the embedding row pad_token_id, as in transformers 5.23.0: for an untied Llama
// with pad_token_id=2 and the ids below, row 2 has gradient norm 0; for a tied one, the head's
// gradient.
//
// Oracle: the model without padding. Its gradients are the same, except that the row loses the part
// that lookups give: all of it if the head is untied.
namespace cleave::padding_test {
namespace {

using Gradients = std::map<std::string, Tensor>;

struct Case {
  std::string family;
  std::string head, table;  ///< names of the two matrices
};

const Case kLlama{"llama", "lm_head.weight", "model.embed_tokens.weight"};
const Case kBert{"bert", "cls.predictions.decoder.weight",
                 "bert.embeddings.word_embeddings.weight"};

struct Wanted {
  std::string padding;  ///< value of pad_token_id
  bool tied = false;
};

std::unique_ptr<Model> make(const Case& c, const Wanted& wanted) {
  const std::string own = c.family == "llama"
                              ? R"("model_type": "llama", "rms_norm_eps": 1e-5)"
                              : R"("model_type": "bert", "architectures": ["BertForMaskedLM"],
               "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0)";
  return make_model(Json::parse(
      str("{", own, R"(, "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 16,
        "eos_token_id": 2, "pad_token_id": )",
          wanted.padding, R"(, "tie_word_embeddings": )", wanted.tied ? "true" : "false", "}"),
      "config.json"));
}

struct Layout {
  Axis tp{}, dp{};
  bool fsdp = false;
};

/// Leaves this rank's complete gradients of one sequence on the parameters.
void run(Model& model, const test::Weights& weights, const Layout& layout) {
  parallelize_module(model, layout.tp, model.plan(false));
  if (layout.fsdp) {
    fully_shard(model.sequence(), layout.dp, {.precision = {at::kDouble, at::kDouble}});
  }
  for (const auto& p : model.parameters()) p->set_leaf(p->part_of(weights.at(p->name())));
  const Tensor ids = at::tensor({1, 5, 2, 7, 2, 9}, at::kLong).view({1, 6});
  const DTensor logits = model(DTensor(ids, layout.tp, Replicate{}), Context());
  // All data-parallel ranks have the same sequence, and each counts its share.
  const DTensor loss =
      cross_entropy(logits, ids.roll(-1, 1), {.valid_tokens = 6 * int64_t{layout.dp.size()}});
  loss.local().backward();
  finish_gradients(model.parameters(), layout.tp);
}

Gradients whole_gradients(const Case& c, const Wanted& wanted, const test::Weights& weights) {
  const auto model = make(c, wanted);
  run(*model, weights, {});
  Gradients out;
  for (const auto& p : model->parameters()) out.emplace(p->name(), p->leaf().grad().clone());
  return out;
}

/// The expected gradients with padding in row 2.
Gradients expected(const Case& c, bool tied, test::Weights weights) {
  if (!tied) {
    Gradients out = whole_gradients(c, {"null", false}, weights);
    out.at(c.table)[2].zero_();
    return out;
  }
  weights[c.head] = weights.at(c.table);
  // In an untied BERT the bias has the decoder's name.
  const std::string bias = "cls.predictions.bias", untied_bias = "cls.predictions.decoder.bias";
  if (weights.contains(bias)) weights[untied_bias] = weights.at(bias);
  Gradients out = whole_gradients(c, {"null", false}, weights);
  if (out.contains(untied_bias)) out[bias] = out.at(untied_bias);
  out.at(c.table)[2].zero_();
  out.at(c.table) += out.at(c.head);
  return out;
}

void expect_gradients(const Case& c, bool tied, int tp_ranks, int dp_ranks) {
  const auto prototype = make(c, {"2", tied});
  const test::Weights weights = test::weights_for(*prototype);
  const Gradients want = expected(c, tied, weights);
  EXPECT_GT(want.at(c.table).norm().item<double>(), 0);
  run_ranks(tp_ranks * dp_ranks, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", dp_ranks}, {"tp", tp_ranks}});
    const auto model = make(c, {"2", tied});
    run(*model, weights, {.tp = mesh["tp"], .dp = mesh["dp"], .fsdp = dp_ranks > 1});
    for (const auto& p : model->parameters()) {
      // fp64, values of order 1 and sums of less than 1000 terms.
      EXPECT_LE(test::largest_difference(p->leaf().grad(), p->part_of(want.at(p->name()))), 1e-12)
          << c.family << ' ' << p->name() << " tied=" << tied << " tp=" << tp_ranks
          << " dp=" << dp_ranks;
    }
  });
}

TEST(Padding, RowOfTheTable_GetsNoGradientFromLookups) {
  for (const Case& c : {kLlama, kBert}) {
    for (const bool tied : {false, true}) {
      for (const int tp : {1, 2, 4}) {
        for (const int dp : {1, 2}) expect_gradients(c, tied, tp, dp);
      }
    }
  }
}

/// The rows of the table that get no gradient from a sequence of all ids.
std::vector<int64_t> rows_without_gradient(Model& model, const std::string& table) {
  materialize(model, {.seed = 3});
  const Tensor ids = at::arange(11).view({1, 11});
  const DTensor logits = model(DTensor(ids, Axis(), Replicate{}), Context());
  cross_entropy(logits, ids.roll(-1, 1), {.valid_tokens = 11}).local().backward();
  std::vector<int64_t> rows;
  for (const auto& p : model.parameters()) {
    for (int64_t r = 0; p->name() == table && r < p->shape()[0]; ++r) {
      if (p->leaf().grad()[r].norm().item<double>() == 0) rows.push_back(r);
    }
  }
  return rows;
}

// As measured in transformers 5.23.0: BertConfig's default is 0, Llama has none; null is none; -1
// is the last row; GPT-2 passes no padding_idx.
TEST(Padding, IndexOfTheConfig_IsThatOfTransformers) {
  using Rows = std::vector<int64_t>;
  const auto rows = [](const Case& c, const std::string& padding) {
    return rows_without_gradient(*make(c, {padding}), c.table);
  };
  EXPECT_EQ(rows(kLlama, "-1"), Rows{10});
  EXPECT_EQ(rows(kLlama, "null"), Rows{});
  EXPECT_EQ(rows(kLlama, "3"), Rows{3});
  EXPECT_EQ(rows(kBert, "null"), Rows{});
  const auto bert = make_model(Json::parse(R"({"model_type": "bert", "vocab_size": 11,
      "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
      "num_attention_heads": 4, "architectures": ["BertForMaskedLM"],
      "tie_word_embeddings": false})",
                                           "config.json"));
  EXPECT_EQ(rows_without_gradient(*bert, kBert.table), Rows{0});
  const auto gpt2 = make_model(Json::parse(R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8,
      "n_layer": 1, "n_head": 2, "n_positions": 16, "pad_token_id": 2,
      "tie_word_embeddings": false})",
                                           "config.json"));
  EXPECT_EQ(rows_without_gradient(*gpt2, "transformer.wte.weight"), Rows{});
}

}  // namespace
}  // namespace cleave::padding_test
