#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/attention.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/plan.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: attention head by head in fp64 with explicit softmax, on whole weights.
namespace cleave::cross_attention_test {
namespace {

using test::numbers;

constexpr int64_t kHidden = 6, kHeads = 5, kHeadDim = 4;
constexpr int64_t kQueries = 5, kKeys = 4;  // more queries than keys

AttentionOptions cross_options() {
  return {.hidden = kHidden,
          .num_heads = kHeads,
          .num_kv_heads = kHeads,
          .head_dim = kHeadDim,
          .causal = false,
          .score_divisor = 1,
          .keys_from = "encoder"};
}

AttentionOptions relative_options(bool causal) {
  AttentionOptions o = cross_options();
  o.causal = causal;
  o.keys_from = "";
  o.relative_bias = RelativeBiasOptions{.num_buckets = 6, .max_distance = 4};
  return o;
}

/// What an attention reads, and what it gives.
struct Pass {
  Tensor x, encoder;  // leaves
  Tensor mask;        // [B, S] bool of the encoder's tokens, may be undefined
  Tensor y{};
  test::Tensors gradients{};  // of the parameters
};

/// transformers' buckets for 6 buckets and a largest distance of 4: see relative_bias_test.
int64_t bucket_of(int64_t ahead, bool causal) {
  if (causal) return std::min<int64_t>(std::max<int64_t>(-ahead, 0), 3) + (ahead <= -4 ? 2 : 0);
  const int64_t bucket = std::abs(ahead) < 1 ? 0 : (std::abs(ahead) < 2 ? 1 : 2);
  return bucket + (ahead > 0 ? 3 : 0);
}

Tensor score_bias(const AttentionOptions& o, const test::Tensors& w, const Pass& in, int64_t h) {
  if (!o.relative_bias) return at::zeros({kQueries, kKeys}, at::kDouble);
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < in.x.size(1); ++t) {
    std::vector<Tensor> row;
    for (int64_t s = 0; s < in.x.size(1); ++s) {
      row.push_back(w.at("relative_attention_bias.weight")[bucket_of(s - t, o.causal)][h]);
    }
    rows.push_back(at::stack(row));
  }
  return at::stack(rows);
}

Tensor reference(const AttentionOptions& o, const test::Tensors& w, const Pass& in) {
  const Tensor& source = o.keys_from.empty() ? in.x : in.encoder;
  const Tensor q = in.x.matmul(w.at("q_proj.weight").t());
  const Tensor k = source.matmul(w.at("k_proj.weight").t());
  const Tensor v = source.matmul(w.at("v_proj.weight").t());
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < in.x.size(0); ++b) {
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < o.num_heads; ++h) {
      const auto head = [&](const Tensor& t) { return t[b].narrow(1, h * kHeadDim, kHeadDim); };
      Tensor e = (head(q).matmul(head(k).t()) + score_bias(o, w, in, h)).exp();
      if (o.causal) e = e.tril();
      if (in.mask.defined()) e = e * in.mask[b].unsqueeze(0);
      heads.push_back((e / e.sum(1, true)).matmul(head(v)));
    }
    rows.push_back(at::cat(heads, 1));
  }
  return at::stack(rows).matmul(w.at("o_proj.weight").t());
}

Pass new_pass(const Tensor& mask) {
  return {.x = test::leaf_of(numbers({2, kQueries, kHidden}, 1)),
          .encoder = test::leaf_of(numbers({2, kKeys, kHidden}, 2)),
          .mask = mask};
}

test::Tensors weights_of(const AttentionOptions& o) {
  Attention attention(o);
  attention.name_tree();
  test::Tensors out;
  uint64_t seed = 100;
  for (const auto& p : attention.parameters()) {
    out.emplace(p->name(), test::leaf_of(0.4 * numbers(p->shape(), ++seed)));
  }
  return out;
}

enum class Kept { kAll, kInputs, kAllButScores };  // for backward

/// Compares the result and every gradient on one rank of `tp`. `states`: the placement of both
/// inputs and the result.
void expect_rank_equals(const AttentionOptions& o, const Pass& want, const test::Tensors& weights,
                        const Axis& tp, const Placement& states, Kept kept) {
  SCOPED_TRACE(testing::Message() << "tp=" << tp.size() << " " << states.describe() << " kept "
                                  << static_cast<int>(kept));
  Attention attention(o);
  parallelize_module(attention, tp,
                     {{"{q,k,v}_proj", Colwise{}}, {"o_proj", Rowwise{.output = states}}});
  if (kept == Kept::kInputs) recompute(attention);
  {
    const at::NoGradGuard no_grad;
    test::fill(attention, weights, at::kDouble);
  }
  Pass own = new_pass(want.mask);
  Context context;
  context.training = true;
  context.recompute_attention = kept == Kept::kAllButScores;
  // Neither leaf: a conversion and a product are between, as between an encoder and its decoder.
  const DTensor x = DTensor::distribute(own.x * 1, tp, states);
  context.values = NamedValues().with("encoder", DTensor::distribute(own.encoder * 1, tp, states));
  if (want.mask.defined()) {
    context.values = context.values.with("encoder_mask", DTensor(want.mask, tp, Replicate{}));
  }
  const Tensor y = attention(x, context).full_tensor();
  EXPECT_LE(test::largest_difference(y, want.y), 1e-12);
  (y * numbers(y.sizes(), 9)).sum().backward();
  finish_gradients(attention.parameters(), tp);
  EXPECT_LE(test::largest_difference(own.x.grad(), want.x.grad()), 1e-12);
  if (!o.keys_from.empty()) {
    EXPECT_LE(test::largest_difference(own.encoder.grad(), want.encoder.grad()), 1e-12);
  }
  for (const auto& p : attention.parameters()) {
    const Tensor grad = test::slice_of(*p, weights.at(p->name()).grad());
    EXPECT_LE(test::largest_difference(p->leaf().grad(), grad), 1e-12) << p->name();
  }
}

void expect_equals_reference(const AttentionOptions& o, const Tensor& mask = {}) {
  const test::Tensors weights = weights_of(o);
  Pass want = new_pass(mask);
  want.y = reference(o, weights, want).detach();
  (reference(o, weights, want) * numbers(want.y.sizes(), 9)).sum().backward();
  for (const int tp : {1, 2, 3, 4}) {
    for (const Placement& states : {Placement(Replicate{}), Placement(Shard{1})}) {
      for (const Kept kept : {Kept::kAll, Kept::kInputs, Kept::kAllButScores}) {
        test::on_ranks(tp, [&](const Axis& axis) {
          expect_rank_equals(o, want, weights, axis, states, kept);
        });
      }
    }
  }
}

TEST(CrossAttention, BothInputs_GetTheirGradients) {
  expect_equals_reference(cross_options());
}

TEST(CrossAttention, MaskOfItsKeys_HidesThem) {
  const Tensor mask = at::ones({2, kKeys}, at::kBool);
  mask[1].narrow(0, 1, 2).fill_(false);
  expect_equals_reference(cross_options(), mask);
}

TEST(CrossAttention, RelativeBias_IsLearnedByEachHead) {
  expect_equals_reference(relative_options(/*causal=*/true));
  expect_equals_reference(relative_options(/*causal=*/false));
}

// The kernel that holds no scores takes fp32 and heads of 16.
TEST(CrossAttention, FusedKernel_EqualsThePlainOne) {
  AttentionOptions o = cross_options();
  o.head_dim = 16;
  std::vector<Tensor> results;
  for (const bool has_mask : {false, true}) {  // a mask takes the plain path
    Attention attention(o);
    materialize(attention, {.seed = 3});
    const Tensor encoder = test::leaf_of(numbers({2, kKeys, kHidden}, 2).to(at::kFloat));
    Context context;
    context.values = NamedValues().with("encoder", DTensor(encoder, Axis(), Replicate{}));
    if (has_mask) {
      const Tensor all = at::ones({2, kKeys}, at::kBool);
      context.values = context.values.with("encoder_mask", DTensor(all, Axis(), Replicate{}));
    }
    const Tensor x = numbers({2, kQueries, kHidden}, 1).to(at::kFloat);
    const Tensor y = attention(DTensor(x, Axis(), Replicate{}), context).local();
    y.square().sum().backward();
    results.push_back(at::cat({y.detach().flatten(), encoder.grad().flatten()}));
  }
  EXPECT_TRUE(at::allclose(results[0], results[1], 1e-5, 1e-7));  // fp32 sums of less than 100
}

TEST(CrossAttention, MissingValue_IsRefusedWithTheNamesThatThereAre) {
  Attention attention(cross_options());
  materialize(attention);
  Context context;
  const DTensor x(at::zeros({1, 2, kHidden}), Axis(), Replicate{});
  EXPECT_STREQ(test::thrown_by([&] { attention(x, context); }).what(),
               "the context has no value 'encoder'; add it to the micro-batch's context, or name "
               "an earlier layer's output with set_output_name");
  context.values = NamedValues().with("encoder_mask", x);
  const Error error = test::thrown_by([&] { attention(x, context); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("it has encoder_mask;"), std::string::npos);
}

TEST(CrossAttention, OptionsOfSelfAttention_AreRefused) {
  AttentionOptions o = cross_options();
  o.causal = true;
  EXPECT_EQ(test::thrown_by([&] { Attention{o}; }).code(), Code::kUsage);
}

TEST(CrossAttention, TableTiedToAnotherShapeOrNone_IsRefused) {
  Attention attention(relative_options(true));
  EXPECT_EQ(
      test::thrown_by([&] { attention.tie_relative_bias(Attention(cross_options())); }).code(),
      Code::kUsage);
  AttentionOptions o = relative_options(true);
  o.relative_bias->num_buckets = 8;
  o.relative_bias->max_distance = 16;
  EXPECT_EQ(test::thrown_by([&] { attention.tie_relative_bias(Attention(o)); }).code(),
            Code::kShape);
}

}  // namespace
}  // namespace cleave::cross_attention_test
