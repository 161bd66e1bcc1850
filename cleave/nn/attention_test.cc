#include "cleave/nn/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/cpu/attention.h"
#include "cleave/nn/dropout.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: attention head by head in fp64 over the visible keys, with explicit softmax and rotary
// positions as complex products.
namespace cleave::attention_test {
namespace {

using test::expect_equals_unsplit;
using test::LayerCase;
using test::numbers;
using test::on_ranks;
using test::thrown_by;
using test::Weights;

constexpr int64_t kHidden = 6;

/// Masks and positions of a test case.
struct Masks {
  Tensor positions{};  // [T] or [B, T]
  Tensor key_mask{};   // [B, T] bool
  Tensor dropout{};    // [B, H, T, T]
  Tensor first_key{};  // [B, T]
};

Tensor rotated(const Tensor& x_TK, const Tensor& positions_T, const RotaryOptions& rotary) {
  const int64_t half = rotary.head_dim / 2;
  const Tensor exponents = at::arange(half, at::kDouble) / static_cast<double>(half);
  const Tensor angles = at::outer(positions_T.to(at::kDouble), at::pow(rotary.theta, -exponents));
  const Tensor turn = at::polar(at::ones_like(angles), angles);
  const Tensor z = at::complex(x_TK.narrow(1, 0, half), x_TK.narrow(1, half, half)) * turn;
  return at::cat({at::real(z), at::imag(z), x_TK.slice(1, 2 * half)}, 1);
}

/// [T, S] true where query t may see key s.
Tensor visible(const AttentionOptions& o, const Masks& masks, int64_t row, int64_t num_tokens) {
  Tensor seen = at::ones({num_tokens, num_tokens}, at::kBool);
  if (o.causal) seen = seen.tril();
  if (o.window > 0) seen = seen.triu(1 - o.window);
  if (masks.key_mask.defined()) seen = seen.logical_and(masks.key_mask[row].unsqueeze(0));
  for (int64_t t = 0; t < num_tokens && masks.first_key.defined(); ++t) {
    seen[t].narrow(0, 0, masks.first_key[row][t].item<int64_t>()).fill_(false);
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (!seen[t].any().item<bool>()) seen[t][t].fill_(true);
  }
  return seen;
}

/// x / sqrt(mean(x^2) + eps) * (weight + offset) over groups of columns, as many as weights or a
/// head has.
Tensor rms_normed(const Tensor& x, const AttentionOptions& o, const Tensor& raw_weight) {
  const int64_t width = o.qk_norm == QkNorm::kEachHead ? o.head_dim : x.size(2);
  const Tensor weight = raw_weight + o.norm_offset;
  const Tensor groups = x.view({x.size(0), x.size(1), -1, width});
  const Tensor scale = (groups.square().mean(-1, true) + o.norm_eps).sqrt();
  return (groups / scale * weight.view({-1, width})).view(x.sizes());
}

Tensor plain_attention(const AttentionOptions& o, const Masks& masks, const Weights& w,
                       const Tensor& x) {
  const auto linear = [&](const std::string& name, const Tensor& in) {
    const Tensor y = in.matmul(w.at(name + ".weight").t());
    return w.contains(name + ".bias") ? y + w.at(name + ".bias") : y;
  };
  Tensor q = linear("q_proj", x), k = linear("k_proj", x), v = linear("v_proj", x);
  if (o.qk_norm != QkNorm::kNone) {
    q = rms_normed(q, o, w.at("q_norm.weight"));
    k = rms_normed(k, o, w.at("k_norm.weight"));
  }
  const int64_t T = x.size(1);
  const Tensor counted = masks.positions.defined() ? masks.positions : at::arange(T);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < x.size(0); ++b) {
    const Tensor positions = counted.dim() == 2 ? counted[b] : counted;
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < o.num_heads; ++h) {
      const int64_t g = h * o.num_kv_heads / o.num_heads;
      Tensor q_TK = q[b].narrow(1, h * o.head_dim, o.head_dim);
      Tensor k_TK = k[b].narrow(1, g * o.head_dim, o.head_dim);
      if (o.rotary) {
        q_TK = rotated(q_TK, positions, *o.rotary);
        k_TK = rotated(k_TK, positions, *o.rotary);
      }
      const double divisor =
          o.score_divisor > 0 ? o.score_divisor : std::sqrt(static_cast<double>(o.head_dim));
      Tensor scores = q_TK.matmul(k_TK.t()) / divisor;
      if (o.soft_cap > 0) scores = o.soft_cap * (scores / o.soft_cap).tanh();
      const Tensor e = scores.exp() * visible(o, masks, b, T);
      Tensor p = e / e.sum(1, true);
      if (masks.dropout.defined()) p = p * masks.dropout[b][h];
      heads.push_back(p.matmul(v[b].narrow(1, g * o.head_dim, o.head_dim)));
    }
    rows.push_back(at::cat(heads, 1));
  }
  return linear("o_proj", at::stack(rows));
}

const Plan kPlan = {{"{q,k,v}_proj", Colwise{}}, {"o_proj", Rowwise{}}};

LayerCase attention_case(const AttentionOptions& o, const Masks& masks = {}) {
  Context context;
  context.positions = masks.positions;
  context.key_mask = masks.key_mask;
  context.first_key = masks.first_key;
  Plan plan = kPlan;
  if (o.qk_norm == QkNorm::kAllHeads) plan.emplace_back("{q,k}_norm", Colwise{});
  return {.make = [o] { return std::make_unique<Attention>(o); },
          .plan = plan,
          .reference = [o, masks](const Weights& w,
                                  const Tensor& x) { return plain_attention(o, masks, w, x); },
          .x = numbers({2, 5, kHidden}, 1),
          .context = context};
}

AttentionOptions heads(int64_t num_heads, int64_t num_kv_heads) {
  return {.hidden = kHidden,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = 4,
          .rotary = RotaryOptions{.head_dim = 4, .theta = 100}};
}

/// Left padding: sequence 0 begins with two padding tokens, sequence 1 has none.
Masks left_padded() {
  const Tensor mask = at::ones({2, 5}, at::kBool);
  mask[0].narrow(0, 0, 2).fill_(false);
  return {.positions = (mask.cumsum(1) - 1).clamp_min(0), .key_mask = mask};
}

TEST(Attention, MultiHead_EqualsTheUnsplitLayer) {
  expect_equals_unsplit(attention_case(heads(5, 5)));  // 2 1 1 1 heads
}

TEST(Attention, GroupedHeads_EqualTheUnsplitLayer) {
  expect_equals_unsplit(attention_case(heads(6, 3)));  // on 4 ranks a KV head is on two of them
  expect_equals_unsplit(attention_case(heads(6, 2)));
  expect_equals_unsplit(attention_case(heads(4, 1)));  // one KV head on every rank
}

TEST(Attention, NotCausalWithoutRotary_EqualsTheUnsplitLayer) {
  AttentionOptions o = heads(6, 3);
  o.causal = false;
  o.rotary.reset();
  expect_equals_unsplit(attention_case(o));
  expect_equals_unsplit(attention_case(o, left_padded()));
}

TEST(Attention, WithBiases_EqualsTheUnsplitLayer) {
  AttentionOptions o = heads(6, 2);
  o.qkv_bias = true;
  o.out_bias = true;
  expect_equals_unsplit(attention_case(o));
}

TEST(Attention, Window_HidesTheKeysBefore) {
  for (const int64_t window : {1, 2, 4, 5, 9}) {
    AttentionOptions o = heads(6, 3);
    o.window = window;
    expect_equals_unsplit(attention_case(o));
    expect_equals_unsplit(attention_case(o, left_padded()));
  }
}

// Sequence 0 has texts of 2 and 3 tokens; sequence 1 of 1, 2 and 1, and one token of padding.
TEST(Attention, TextsOfASequence_AreKeptApart) {
  Masks masks{.positions = at::tensor({0, 1, 0, 1, 2, 0, 0, 1, 0, 0}, at::kLong).view({2, 5}),
              .first_key = at::tensor({0, 0, 2, 2, 2, 0, 1, 1, 3, 4}, at::kLong).view({2, 5})};
  for (const bool has_padding : {false, true}) {
    if (has_padding) {
      masks.key_mask = at::ones({2, 5}, at::kBool);
      masks.key_mask[1].narrow(0, 4, 1).fill_(false);
    }
    for (const int64_t window : {0, 2}) {
      AttentionOptions o = heads(6, 3);
      o.window = window;
      expect_equals_unsplit(attention_case(o, masks));
    }
  }
}

// With 6/2 heads on 4 ranks, rank 1 has both KV heads and the others one; a head counts once.
TEST(Attention, NormsOfQueriesAndKeys_AreOverEachHeadOrAllHeadsOfAllRanks) {
  for (const QkNorm norm : {QkNorm::kEachHead, QkNorm::kAllHeads}) {
    for (const auto& [num_heads, num_kv_heads] : {std::pair{5, 5}, {6, 3}, {6, 2}, {4, 1}}) {
      AttentionOptions o = heads(num_heads, num_kv_heads);
      o.qk_norm = norm;
      o.norm_eps = 0.01;
      expect_equals_unsplit(attention_case(o));
      o.norm_offset = 1;
      expect_equals_unsplit(attention_case(o));
    }
  }
}

TEST(Attention, SoftCapAndDivisor_ChangeTheScores) {
  AttentionOptions o = heads(6, 3);
  o.score_divisor = 0.3;
  expect_equals_unsplit(attention_case(o));
  o.soft_cap = 0.5;
  expect_equals_unsplit(attention_case(o));
  o.window = 2;
  expect_equals_unsplit(attention_case(o, left_padded()));
}

TEST(Attention, RotaryOfAPartOfAHead_LeavesTheOtherDims) {
  AttentionOptions o = heads(6, 3);
  o.rotary->head_dim = 2;
  expect_equals_unsplit(attention_case(o));
}

TEST(Attention, NormOverAllHeadsWithoutAStyle_IsRefusedOnShards) {
  on_ranks(2, [](const Axis& axis) {
    AttentionOptions o = heads(6, 3);
    o.qk_norm = QkNorm::kAllHeads;
    Attention attention(o);
    parallelize_module(attention, axis, kPlan);
    materialize(attention);
    const DTensor x(at::zeros({1, 2, kHidden}), axis, Replicate{});
    const Error error = thrown_by([&] { attention(x, {}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("give both the style colwise"), std::string::npos)
        << error.what();
  });
}

TEST(Attention, LeftPadding_HidesKeysAndShiftsPositions) {
  expect_equals_unsplit(attention_case(heads(6, 3), left_padded()));
}

// A padding query attends only to real keys. This matters if padding has labels.
TEST(Attention, RightPadding_IsHiddenFromEveryQuery) {
  const Tensor mask = at::ones({2, 5}, at::kBool);
  mask[1].narrow(0, 3, 2).fill_(false);
  for (const bool causal : {true, false}) {
    AttentionOptions o = heads(6, 3);
    o.causal = causal;
    expect_equals_unsplit(attention_case(o, {.key_mask = mask}));
  }
}

TEST(Attention, SequenceOfPaddingAlone_StaysFinite) {
  Masks masks = left_padded();
  masks.key_mask[0].fill_(false);
  expect_equals_unsplit(attention_case(heads(6, 3), masks));
}

TEST(Attention, WithoutAPlan_RunsReplicatedOnEveryRank) {
  LayerCase c = attention_case(heads(6, 2));
  c.plan = {};
  expect_equals_unsplit(c);
}

// The reference draws the mask of all heads; each tp rank draws only its own heads' part.
TEST(Attention, DropoutOfProbabilities_IsTheSameOnEverySplit) {
  for (const bool causal : {true, false}) {
    AttentionOptions o = heads(6, 3);
    o.causal = causal;
    o.dropout = 0.3;
    Context context;
    context.training = true;
    context.seed = 11;
    context.step = 4;
    context.first_sample = 6;
    const DTensor whole(at::empty({2, 6, 5, 5}, at::kDouble), Axis(), Replicate{});
    LayerCase c = attention_case(o, {.dropout = dropout_mask(whole, o.dropout, "", context)});
    c.context = context;
    expect_equals_unsplit(c);
  }
}

/// Output for tokens passed in chunks through a KV cache.
Tensor in_chunks(Layer& attention, const Tensor& x, const Axis& axis, Context context,
                 const std::vector<int64_t>& chunks) {
  const at::NoGradGuard no_grad;
  KvCache cache(x.size(1));
  context.cache = &cache;
  const Context whole = context;
  std::vector<Tensor> out;
  int64_t begin = 0;
  for (const int64_t tokens : chunks) {
    if (whole.positions.defined()) context.positions = whole.positions.narrow(1, begin, tokens);
    if (whole.key_mask.defined()) {
      context.key_mask = whole.key_mask.narrow(1, 0, begin + tokens).contiguous();
    }
    out.push_back(
        attention(DTensor(x.narrow(1, begin, tokens), axis, Replicate{}), context).full_tensor());
    begin += tokens;
  }
  return at::cat(out, 1);
}

TEST(Attention, PrefillAndDecodeThroughACache_EqualOnePass) {
  const std::vector<std::vector<int64_t>> ways = {{5}, {3, 1, 1}, {1, 1, 1, 1, 1}, {2, 3}};
  AttentionOptions windowed = heads(6, 2);
  windowed.window = 3;
  windowed.qk_norm = QkNorm::kAllHeads;
  windowed.score_divisor = 0.7;
  AttentionOptions capped = heads(6, 3);
  capped.soft_cap = 0.5;
  for (const auto& o : {heads(5, 5), heads(6, 3), heads(4, 1), windowed, capped}) {
    for (const Masks& masks : {Masks{}, left_padded()}) {
      const LayerCase c = attention_case(o, masks);
      const test::Unsplit want(c);
      for (const int tp : {1, 2, 3, 4}) {
        on_ranks(tp, [&](const Axis& axis) {
          const auto layer = c.make();
          parallelize_module(*layer, axis, c.plan);
          test::fill(*layer, want.weights, at::kDouble);
          for (const auto& chunks : ways) {
            const Tensor got = in_chunks(*layer, c.x, axis, c.context, chunks);
            EXPECT_LE(test::largest_difference(got, want.y), 1e-12)
                << o.num_heads << "/" << o.num_kv_heads << " tp=" << tp << " in " << chunks.size()
                << " chunks";
          }
        });
      }
    }
  }
}

// The cached keys have the frequencies of short sequences.
TEST(Attention, DecodingPastTheLengthOfLongRope_IsRefused) {
  AttentionOptions o = heads(6, 3);
  o.rotary = RotaryOptions{.head_dim = 4,
                           .theta = 100,
                           .scaling = RotaryOptions::Scaling::kLongRope,
                           .original_positions = 4,
                           .short_factors = {1, 1},
                           .long_factors = {2, 3}};
  Attention layer(o);
  materialize(layer);
  const Tensor x = at::zeros({1, 5, kHidden});
  EXPECT_EQ(in_chunks(layer, x, Axis(), {}, {5}).size(1), 5);
  const Error error = thrown_by([&] { in_chunks(layer, x, Axis(), {}, {3, 1, 1}); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(),
               "the rotary frequencies change after 4 tokens, and the cached keys have those of "
               "shorter sequences; generate fewer tokens, or begin with a longer prompt");
}

// Without rotary positions, keys and values are sums of products. If bf16 represents them exactly,
// rounding changes nothing; otherwise it changes their last bits, with and without a cache.
TEST(Attention, Bf16Keys_AreRoundedWithAndWithoutACache) {
  const AttentionOptions o{
      .hidden = kHidden, .num_heads = 6, .num_kv_heads = 3, .head_dim = 16, .rotary = {}};
  const auto outputs = [&](bool narrow, double grid) {
    Attention layer(o);
    for (const auto& p : layer.parameters()) {
      p->set_leaf(at::round(numbers(p->shape(), 7) * grid) / grid);
    }
    if (narrow) layer.heads().cast_kv_bf16();
    const Tensor x = at::round(numbers({2, 5, kHidden}, 8) * grid) / grid;
    const at::NoGradGuard no_grad;
    const Tensor whole = layer(DTensor(x, Axis(), Replicate{}), {}).local();
    EXPECT_LE(test::largest_difference(in_chunks(layer, x, Axis(), {}, {3, 1, 1}), whole), 1e-12);
    return whole;
  };
  EXPECT_TRUE(at::equal(outputs(true, 2), outputs(false, 2)));
  const Tensor exact = outputs(false, 1024);
  const double difference = test::largest_difference(outputs(true, 1024), exact);
  EXPECT_GT(difference, 0);
  // Scores of up to 32 change by 2^-9 of themselves, so probabilities by 2^-4 of theirs.
  EXPECT_LE(difference, std::ldexp(exact.abs().max().item<double>(), -3));
}

// The kernel of one query reads int8 rows in fp32; in fp64, and for several queries, the attention
// reads the values that they stand for.
TEST(Attention, Int8Keys_AreRoundedWithAndWithoutACache) {
  const AttentionOptions o{
      .hidden = kHidden, .num_heads = 6, .num_kv_heads = 3, .head_dim = 16, .rotary = {}};
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    Attention layer(o);
    for (const auto& p : layer.parameters()) p->set_leaf(numbers(p->shape(), 7).to(type));
    const Tensor x = numbers({2, 5, kHidden}, 8).to(type);
    const at::NoGradGuard no_grad;
    const Tensor exact = layer(DTensor(x, Axis(), Replicate{}), {}).local();
    layer.heads().cast_kv_int8();
    const Tensor whole = layer(DTensor(x, Axis(), Replicate{}), {}).local();
    EXPECT_GT(test::largest_difference(whole, exact), 1e-6);
    const double size = exact.abs().max().item<double>();
    EXPECT_LE(test::largest_difference(in_chunks(layer, x, Axis(), {}, {3, 1, 1}), whole),
              size * (type == at::kDouble ? 1e-12 : 1e-4));
  }
}

TEST(KvCache, Int8_HoldsTheRoundedRows) {
  KvCache cache(5);
  const Tensor k = numbers({2, 2, 3, 4}, 1), v = numbers({2, 2, 3, 4}, 2);
  cache.extend("attention", k, v, at::kChar);
  cache.repeat_rows(2);
  const Tensor more = numbers({4, 2, 1, 4}, 3);
  const auto [keys, values] = cache.extend("attention", more, more, at::kChar);
  const auto expect_close = [](const Tensor& rows, const Tensor& want) {
    const Tensor steps = want.abs().amax(-1, true) / 127;
    const Tensor error = (from_int8_rows(rows, at::kDouble) - want).abs();
    EXPECT_TRUE(error.le(steps * 0.501).all().item<bool>());
  };
  expect_close(keys, at::cat({k.repeat_interleave(2, 0), more}, 2));
  expect_close(values, at::cat({v.repeat_interleave(2, 0), more}, 2));
}

TEST(KvCache, GivenType_IsThatOfStoredKeysAndValues) {
  KvCache cache(4);
  const Tensor k = numbers({1, 2, 3, 4}, 1), v = numbers({1, 2, 3, 4}, 2);
  const auto [keys, values] = cache.extend("attention", k, v, at::kBFloat16);
  EXPECT_TRUE(at::equal(keys, k.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(values, v.to(at::kBFloat16)));
}

TEST(KvCache, Reorder_MovesSequencesOfEveryLayer) {
  KvCache cache(4);
  const Tensor k = numbers({3, 2, 2, 4}, 1), v = numbers({3, 2, 2, 4}, 2);
  cache.extend("layers.0", k, v, at::kDouble);
  cache.extend("layers.1", v, k, at::kDouble);
  EXPECT_EQ(cache.length("layers.0"), 2);
  EXPECT_EQ(cache.length("layers.2"), 0);
  EXPECT_EQ(cache.length(), 2);
  EXPECT_EQ(KvCache(4).length(), 0);
  const Tensor rows = at::tensor({2, 0, 0}, at::kLong);
  cache.reorder(rows);
  const Tensor more = numbers({3, 2, 1, 4}, 3);
  const auto [keys, values] = cache.extend("layers.1", more, more, at::kDouble);
  EXPECT_TRUE(at::equal(keys, at::cat({v.index_select(0, rows), more}, 2)));
  EXPECT_TRUE(at::equal(values, at::cat({k.index_select(0, rows), more}, 2)));
}

TEST(KvCache, TooManyTokens_AreRefusedWithTheNumbers) {
  KvCache cache(4);
  const Tensor three = numbers({1, 1, 3, 2}, 1);
  cache.extend("attention", three, three, at::kDouble);
  const Tensor two = numbers({1, 1, 2, 2}, 3);
  const Error error = thrown_by([&] { cache.extend("attention", two, two, at::kDouble); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(), "the KV cache holds at most 4 tokens; it has 3 and got 2 more");
}

TEST(Attention, InconsistentPlanOfProjections_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    const std::vector<Plan> wrong = {
        {{"{q,k}_proj", Colwise{}}, {"o_proj", Rowwise{}}},
        {{"{q,k,v}_proj", Colwise{}}},
        {{"o_proj", Rowwise{}}},
        {{"{q,k,v}_proj", Colwise{}}, {"o_proj", Colwise{}}},
    };
    for (const Plan& plan : wrong) {
      Attention attention(heads(6, 3));
      const Error error = thrown_by([&] { parallelize_module(attention, axis, plan); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_NE(std::string(error.what()).find("belong together"), std::string::npos);
    }
    Attention attention(heads(6, 3));
    const Plan gathered = {{"{q,v}_proj", Colwise{}},
                           {"k_proj", Colwise{.output = Replicate{}}},
                           {"o_proj", Rowwise{}}};
    parallelize_module(attention, axis, gathered);
    materialize(attention);
    const DTensor x(at::zeros({1, 2, kHidden}), axis, Replicate{});
    const Error error = thrown_by([&] { attention(x, {}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("q_proj (Shard(2)) and k_proj (Replicate)"),
              std::string::npos)
        << error.what();
  });
}

// Without the check every rank would silently attend only to its own tokens.
TEST(Attention, ShardedTokensWithoutAPlan_AreRefused) {
  on_ranks(2, [](const Axis& axis) {
    Attention attention(heads(6, 3));
    parallelize_module(attention, axis, {});
    materialize(attention);
    const DTensor x = DTensor::distribute(at::zeros({1, 4, kHidden}), axis, Shard{1});
    const Error error = thrown_by([&] { attention(x, {}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("every token"), std::string::npos) << error.what();
  });
}

}  // namespace
}  // namespace cleave::attention_test
