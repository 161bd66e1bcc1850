#include "cleave/nn/embedding.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: the same layer as plain tensor functions on whole weights, in fp64.
namespace cleave::embedding_test {
namespace {

using test::LayerCase;

constexpr int64_t kPadding = 1;

LayerCase padded_case(int64_t rows, int64_t padding_idx, const Plan& plan) {
  return {.make =
              [rows, padding_idx] {
                return std::make_unique<Embedding>(EmbeddingOptions{
                    .num_embeddings = rows, .embedding_dim = 5, .padding_idx = padding_idx});
              },
          .plan = plan,
          .reference =
              [](const test::Weights& w, const Tensor& ids) {
                const Tensor y = w.at("weight").index_select(0, ids.flatten()).view({2, 6, 5});
                return at::where(ids.eq(kPadding).unsqueeze(-1), y.detach(), y);
              },
          .x = test::ids({2, 6}, rows, 3)};
}

TEST(Embedding, PaddingOnEveryShard_EqualsTheUnsplitLayer) {
  for (const int64_t rows : {11, 2}) {  // 2: ranks without a row
    for (const int64_t index : {kPadding, kPadding - rows}) {
      const LayerCase whole = padded_case(rows, index, {});
      ASSERT_TRUE(whole.x.eq(kPadding).any().item<bool>());
      test::expect_equals_unsplit(whole);
      for (const Style& style :
           {Style(Rowwise{}), Style(Rowwise{.output = Shard{1}}), Style(Colwise{})}) {
        test::expect_equals_unsplit(padded_case(rows, index, {{"", style}}));
      }
    }
  }
}

// Ranks that do not hold an id's row look up another one, of which nothing may remain. Oracle: the
// definition; all numbers are whole, so sums are exact.
TEST(Embedding, RowsAndGradientsThatAreNotFinite_StayWithTheirIds) {
  constexpr int64_t kRows = 7, kWidth = 5;
  const Tensor ids = test::ids({2, 6}, kRows, 3);
  for (int64_t bad = 0; bad < kRows; ++bad) {
    const Tensor table = test::whole_numbers({kRows, kWidth}, 1);
    table[bad].fill_(NAN);
    const Tensor upstream = test::whole_numbers({2, 6, kWidth}, 2);
    upstream.masked_fill_(ids.eq(bad).unsqueeze(-1), INFINITY);
    const Tensor want = table.index_select(0, ids.flatten()).view(upstream.sizes());
    const Tensor want_gradient =
        at::zeros_like(table).index_add_(0, ids.flatten(), upstream.flatten(0, 1));
    for (const int tp : {1, 2, 3}) {
      test::on_ranks(tp, [&](const Axis& axis) {
        Embedding layer({.num_embeddings = kRows, .embedding_dim = kWidth});
        parallelize_module(layer, axis, {{"", Rowwise{}}});
        test::fill(layer, {{"weight", table}}, at::kDouble);
        const Tensor y = layer(DTensor(ids, axis, Replicate{}), Context()).local();
        EXPECT_TRUE(at::allclose(y, want, 0, 0, /*equal_nan=*/true)) << bad << " of " << tp;
        y.backward(upstream);
        const Parameter& weight = *layer.weight();
        EXPECT_TRUE(at::equal(weight.leaf().grad(), test::slice_of(weight, want_gradient)))
            << bad << " of " << tp;
      });
    }
  }
}

// Oracle: the initial values of the table without padding, whose other rows must not change.
TEST(Embedding, PaddingRow_StartsAsZerosOnEveryLayout) {
  const auto start = [](std::optional<int64_t> padding_idx, const Axis& axis, const Style& style) {
    Embedding layer({.num_embeddings = 7, .embedding_dim = 5, .padding_idx = padding_idx});
    layer.name_tree();
    parallelize_module(layer, axis, {{"", style}});
    return layer.weight();
  };
  Tensor want = start({}, Axis(), Rowwise{})->initial_value(3, at::kDouble);
  want[kPadding].zero_();
  for (const int tp : {1, 2, 3}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      for (const Style& style : {Style(Rowwise{}), Style(Colwise{})}) {
        const auto weight = start(kPadding, axis, style);
        EXPECT_TRUE(
            at::equal(weight->initial_value(3, at::kDouble), test::slice_of(*weight, want)));
      }
    });
  }
}

TEST(Embedding, PaddingOutsideTheTable_IsRefused) {
  for (const int64_t index : {-12, 11}) {
    const Error error = test::thrown_by(
        [&] { Embedding({.num_embeddings = 11, .embedding_dim = 5, .padding_idx = index}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_EQ(error.what(), str("Embedding(num_embeddings=11, padding_idx=", index,
                                "); padding_idx must be in [-11, 11)"));
  }
}

TEST(Embedding, IdOutsideTheTable_IsReported) {
  const auto message_of = [](Layer& layer) {
    layer.name_tree();
    materialize(layer, {});
    return std::string(
        test::thrown_by([&] {
          layer(DTensor(at::full({1, 1}, 9, at::kLong), Axis(), Replicate{}), Context());
        }).what());
  };
  const std::string rest = "id 9 is outside [0, 3); check that the tokenizer matches the model";
  Embedding alone({.num_embeddings = 3, .embedding_dim = 2});
  EXPECT_EQ(message_of(alone), rest);
}

}  // namespace
}  // namespace cleave::embedding_test
