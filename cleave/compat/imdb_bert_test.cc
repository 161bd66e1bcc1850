#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

namespace cleave::imdb_bert_test {
namespace {

using test::Weights;
using testing::HasSubstr;

constexpr int64_t kHeads = 5, kWidth = 10, kLayers = 2;

/// Sizes that 2, 3 and 4 do not divide.
Json config() {
  return Json::parse(R"({"model_type": "imdb_bert", "vocab_size": 23, "hidden_size": 10,
      "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 14,
      "id2label": {"0": "no", "1": "maybe", "2": "yes"}})",
                     "config.json");
}

Tensor normed(const Weights& w, const std::string& name, const Tensor& x) {
  return at::layer_norm(x, {kWidth}, w.at(name + ".weight"), w.at(name + ".bias"), 1e-5);
}

Tensor attended(const Weights& w, const std::string& name, const Tensor& x, const Tensor& mask) {
  const auto heads = [&](const char* projection) {
    const Tensor y = x.matmul(w.at(name + projection).t());
    return y.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
  };
  Tensor scores = heads(".q_proj.weight").matmul(heads(".k_proj.weight").transpose(2, 3)) /
                  std::sqrt(static_cast<double>(kWidth / kHeads));
  const Tensor own = at::eye(x.size(1), at::kBool);
  const Tensor seen = mask.view({mask.size(0), 1, 1, -1}).logical_or(own);
  scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const Tensor y = scores.softmax(-1).matmul(heads(".v_proj.weight"));
  return y.transpose(1, 2).flatten(2).matmul(w.at(name + ".o_proj.weight").t());
}

/// The model as plain functions on whole weights.
Tensor reference(const Weights& w, const Tensor& ids, const Tensor& mask) {
  Tensor x = at::embedding(w.at("embedding.weight"), ids);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string block = str("blocks.", i, ".");
    x = x + attended(w, block + "attention", normed(w, block + "attention_norm", x), mask);
    const Tensor h = normed(w, block + "feed_forward_norm", x);
    x = x + at::gelu(h.matmul(w.at(block + "feed_forward.up_proj.weight").t()))
                .matmul(w.at(block + "feed_forward.down_proj.weight").t());
  }
  const Tensor real = mask.to(at::kDouble).unsqueeze(-1);
  const Tensor mean = (normed(w, "norm", x) * real).sum(1) / real.sum(1);
  return at::relu(mean.matmul(w.at("classifier.first.weight").t()))
      .matmul(w.at("classifier.second.weight").t());
}

void expect_reference(bool sequence_parallel) {
  const Tensor mask = at::ones({3, 7}, at::kBool);
  mask[1].narrow(0, 4, 3).fill_(false);
  test::LayerCase c{
      .make = [] { return make_model(config()); },
      .plan = make_model(config())->plan(sequence_parallel),
      .reference = [&](const Weights& w, const Tensor& x) { return reference(w, x, mask); },
      .x = test::ids({3, 7}, 23, 1)};
  c.context.key_mask = mask;
  test::expect_equals_unsplit(c);
}

TEST(ImdbBert, OverOneToFourRanks_EqualsTheUnsplitClassifier) {
  expect_reference(false);
}

TEST(ImdbBert, WithSequenceParallelism_EqualsTheUnsplitClassifier) {
  expect_reference(true);
}

TEST(ImdbBert, WithoutAMask_TheMeanIsOverAllTokens) {
  const auto model = make_model(config());
  materialize(*model, {.seed = 3, .dtype = at::kDouble});
  const DTensor ids(test::ids({2, 5}, 23, 2), Axis(), Replicate{});
  Context masked;
  masked.key_mask = at::ones({2, 5}, at::kBool);
  const Tensor plain = (*model)(ids, Context()).local();
  EXPECT_LE(test::largest_difference(plain, (*model)(ids, masked).local()), 1e-14);
}

// Oracle: 6 for each element of a matrix or norm that every token reads, and 12 K T for each head.
TEST(ImdbBert, OperationsOfAStep_AreThoseOfItsTokens) {
  const double block = 4 * 10 * 10 + 2 * 10 * 14 + 2 * 2 * 10;
  EXPECT_DOUBLE_EQ(make_model(config())->train_flops_per_token(7),
                   6 * (kLayers * block + 2 * kWidth) + kLayers * 12 * kWidth * 7);
}

TEST(ReadLabels, NumbersOutOfOrder_AreSortedAndGapsRefused) {
  const auto labels_of = [](const std::string& text) {
    return read_labels(Json::parse(text, "config.json"));
  };
  EXPECT_EQ(labels_of(R"({"id2label": {"1": "b", "0": "a"}})"),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(labels_of("{}"), (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(labels_of(R"({"num_labels": 3})").size(), 3U);
  for (const char* wrong : {R"({"id2label": {"0": "a", "2": "b"}})", R"({"id2label": {}})",
                            R"({"id2label": {"0": "a", "00": "b"}})", R"({"id2label": [1]})",
                            R"({"id2label": {"-1": "a"}})", R"({"id2label": {"x": "a"}})"}) {
    EXPECT_EQ(test::thrown_by([&] { labels_of(wrong); }).code(), Code::kFormat) << wrong;
  }
}

}  // namespace
}  // namespace cleave::imdb_bert_test
