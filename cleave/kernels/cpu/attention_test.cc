#include "cleave/kernels/cpu/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/base/philox.h"
#include "tests/support/thrown.h"

namespace cleave::attention_test {
namespace {

/// 1/(1-p) or 0 for each of the probabilities [B, H, T, S].
Tensor kept(const AttentionDropout& d, at::IntArrayRef sizes) {
  const int64_t B = sizes[0], H = sizes[1], T = sizes[2], S = sizes[3];
  const Tensor u = at::empty({d.first_sample + B, d.num_heads, T, S}, at::kFloat);
  fill_uniform(d.key, d.step, 0, {u.mutable_data_ptr<float>(), static_cast<size_t>(u.numel())});
  const Tensor own = u.narrow(0, d.first_sample, B).narrow(1, d.first_head, H);
  return own.ge(d.p).to(at::kDouble) / (1 - d.p);
}

/// Oracle: the definition in double precision, with libtorch's operations.
Tensor defined(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask) {
  const int64_t T = q.size(2);
  const int64_t S = k.size(2);
  Tensor keys = k, values = v;
  if (!mask.kv_head.empty()) {
    const Tensor heads = at::tensor(mask.kv_head);
    keys = k.index_select(1, heads);
    values = v.index_select(1, heads);
  }
  Tensor seen = at::ones({q.size(0), 1, T, S}, at::kBool);
  if (mask.causal) seen = seen.logical_and(at::ones({T, S}, at::kBool).tril(S - T));
  if (mask.window > 0)
    seen = seen.logical_and(at::ones({T, S}, at::kBool).triu(S - T - mask.window + 1));
  if (mask.key_mask.defined()) seen = seen.logical_and(mask.key_mask.view({-1, 1, 1, S}));
  if (mask.first_key.defined())
    seen = seen.logical_and(at::arange(S).ge(mask.first_key.unsqueeze(-1)).unsqueeze(1));
  const Tensor own = at::eye(S, at::kBool).narrow(0, S - T, T);
  seen = seen.logical_or(seen.any(-1, true).logical_not().logical_and(own));
  const double divisor = mask.divisor > 0 ? mask.divisor : std::sqrt(q.size(3));
  Tensor scores = q.matmul(keys.transpose(-1, -2)) / divisor;
  if (mask.soft_cap > 0) scores = mask.soft_cap * (scores / mask.soft_cap).tanh();
  Tensor p = scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
  if (mask.dropout.p > 0) p = p * kept(mask.dropout, p.sizes());
  return p.matmul(values);
}

struct Sizes {
  int64_t B, H, G, T, S, K;
};

Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble).to(type).requires_grad_();
}

/// Compares result and gradients of fast_attention with the definition.
void expect_equal(const Sizes& z, const AttentionMask& mask, at::ScalarType type) {
  const Tensor q = random({z.B, z.T, z.H, z.K}, 1, type);
  const Tensor k = random({z.B, z.S, z.G, z.K}, 2, type);
  const Tensor v = random({z.B, z.S, z.G, z.K}, 3, type);
  const Tensor d = random({z.B, z.H, z.T, z.K}, 4, type).detach();
  const auto heads_first = [](const Tensor& t) { return t.transpose(1, 2); };
  ASSERT_TRUE(takes_fast_attention(heads_first(q), heads_first(k), heads_first(v)));
  const Tensor got = fast_attention(heads_first(q), heads_first(k), heads_first(v), mask);
  const auto got_grads = torch::autograd::grad({got}, {q, k, v}, {d});
  std::vector<Tensor> wide;
  for (const Tensor& t : {q, k, v}) {
    wide.push_back(t.detach().to(at::kDouble).requires_grad_());
  }
  const Tensor want =
      defined(heads_first(wide[0]), heads_first(wide[1]), heads_first(wide[2]), mask);
  const auto want_grads = torch::autograd::grad({want}, wide, {d.to(at::kDouble)});
  // Sums of up to S terms of size about 1, rounded to the type.
  const double bound = type == at::kBFloat16
                           ? std::ldexp(1, -7)
                           : std::ldexp(1, -23) * (8 + 4 * std::sqrt(static_cast<double>(z.S)));
  const auto close = [&](const Tensor& a, const Tensor& b, const char* what) {
    const double size = 1 + b.abs().max().item<double>();
    const double error = (a.to(at::kDouble) - b).abs().max().item<double>();
    EXPECT_LE(error, bound * size) << what << " T=" << z.T << " S=" << z.S << " K=" << z.K;
  };
  close(got, want, "result");
  const char* names[] = {"dq", "dk", "dv"};
  for (size_t i = 0; i < 3; ++i) close(got_grads[i], want_grads[i], names[i]);
}

TEST(FastAttention, AnySizes_EqualTheDefinition) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool causal : {true, false}) {
      for (const Sizes& z : {Sizes{1, 1, 1, 2, 2, 16},
                             {2, 3, 3, 17, 17, 32},
                             {1, 2, 2, 49, 49, 64},
                             {2, 2, 2, 100, 100, 48},
                             {1, 2, 2, 5, 70, 16},
                             {1, 1, 1, 130, 130, 80}}) {
        expect_equal(z, {.causal = causal}, type);
      }
    }
  }
}

// Rows that begin at any of a counter's four numbers, heads of another rank, hidden keys, a window,
// a cap, and a single query.
TEST(FastAttention, Dropout_KeepsTheElementsOfItsStream) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool causal : {true, false}) {
      for (const Sizes& z : {Sizes{2, 2, 1, 1, 1, 16},
                             {1, 2, 2, 1, 9, 16},
                             {2, 3, 3, 17, 17, 32},
                             {1, 4, 2, 49, 49, 64},
                             {2, 2, 2, 100, 103, 48},
                             {1, 1, 1, 130, 130, 80}}) {
        AttentionMask mask{.causal = causal, .kv_head = {}};
        for (int64_t h = 0; h < z.H; ++h) mask.kv_head.push_back(h * z.G / z.H);
        mask.dropout = {
            .p = 0.3, .key = 77, .step = 5, .first_sample = 3, .num_heads = 7, .first_head = 2};
        expect_equal(z, mask, type);
        if (causal) mask.window = 21;
        mask.soft_cap = 2;
        mask.key_mask = at::ones({z.B, z.S}, at::kBool);
        mask.key_mask.narrow(1, 0, z.S / 3).fill_(false);
        expect_equal(z, mask, type);
      }
    }
  }
}

// Windows of one key, of a part of a vector, of several vectors, and longer than the sequence.
TEST(FastAttention, Windows_HideTheKeysBefore) {
  Tensor key_mask = at::ones({2, 150}, at::kBool);
  key_mask[0].narrow(0, 0, 70).fill_(false);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t window : {1, 5, 16, 37, 149, 200}) {
      for (const int64_t T : {1, 7, 150}) {
        const Sizes z{2, 4, 2, T, 150, 32};
        const std::vector<int64_t> heads = {0, 0, 1, 1};
        expect_equal(z, {.causal = true, .window = window, .kv_head = heads}, type);
        expect_equal(z, {.causal = true, .window = window, .key_mask = key_mask, .kv_head = heads},
                     type);
      }
    }
  }
}

/// The first keys of the last T of S tokens in sequences of texts with random lengths.
Tensor random_texts(const Sizes& z, double mean_length, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const Tensor begins = at::rand({z.B, z.S}, generator, at::kDouble).lt(1 / mean_length);
  const Tensor starts = begins.to(at::kLong) * at::arange(z.S);
  return std::get<0>(starts.cummax(1)).narrow(1, z.S - z.T, z.T).contiguous();
}

TEST(FastAttention, FirstKeys_KeepTheTextsOfASequenceApart) {
  Tensor key_mask = at::ones({2, 150}, at::kBool);
  key_mask[0].narrow(0, 120, 30).fill_(false);
  const std::vector<int64_t> heads = {0, 0, 1, 1};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 7, 150}) {
      const Sizes z{2, 4, 2, T, 150, 32};
      for (const double mean_length : {1.0, 5.0, 20.0, 80.0}) {
        const Tensor first = random_texts(z, mean_length, static_cast<uint64_t>(T));
        expect_equal(z, {.causal = true, .first_key = first, .kv_head = heads}, type);
        expect_equal(z, {.causal = true, .window = 9, .first_key = first, .kv_head = heads}, type);
        expect_equal(
            z, {.causal = true, .key_mask = key_mask, .first_key = first, .kv_head = heads}, type);
      }
    }
  }
}

// Scores of about 3 with a cap of 2: most are near the cap, where the slope is small.
TEST(FastAttention, SoftCap_BoundsTheScoresInForwardAndBackward) {
  Tensor key_mask = at::ones({2, 70}, at::kBool);
  key_mask[0].narrow(0, 0, 33).fill_(false);
  const std::vector<int64_t> heads = {0, 0, 1, 1};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 7, 70}) {  // 1: the loop of decoding
      const Sizes z{2, 4, 2, T, 70, 32};
      expect_equal(z, {.causal = true, .kv_head = heads, .divisor = 2, .soft_cap = 2}, type);
      expect_equal(z,
                   {.causal = true,
                    .window = 19,
                    .key_mask = key_mask,
                    .kv_head = heads,
                    .divisor = 2,
                    .soft_cap = 2},
                   type);
      expect_equal(z, {.causal = false, .kv_head = heads, .soft_cap = 0.5}, type);
    }
  }
}

// In packed texts of Gemma 2, both change the same scores.
TEST(FastAttention, SoftCapOfPackedTexts_IsAppliedBeforeTheMask) {
  Tensor key_mask = at::ones({2, 100}, at::kBool);
  key_mask[1].narrow(0, 90, 10).fill_(false);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 7, 100}) {
      const Sizes z{2, 4, 2, T, 100, 32};
      expect_equal(z,
                   {.causal = true,
                    .window = 19,
                    .key_mask = key_mask,
                    .first_key = random_texts(z, 25, static_cast<uint64_t>(T)),
                    .kv_head = {0, 0, 1, 1},
                    .divisor = 2,
                    .soft_cap = 2},
                   type);
    }
  }
}

TEST(FastAttention, SettingsWithoutEffect_LeaveTheBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 70}) {
      const Tensor q = random({2, 2, T, 32}, 1, type), k = random({2, 2, 70, 32}, 2, type);
      const Tensor d = random({2, 2, T, 32}, 3, type).detach();
      const auto results = [&](const AttentionMask& mask) {
        const Tensor out = fast_attention(q, k, k, mask);
        auto all = torch::autograd::grad({out}, {q, k}, {d});
        all.push_back(out);
        return all;
      };
      const auto want = results({.causal = true});
      for (const AttentionMask& mask :
           {AttentionMask{.causal = true, .divisor = std::sqrt(32.0)},
            AttentionMask{.causal = true, .window = 70},
            AttentionMask{.causal = true, .first_key = at::zeros({2, T}, at::kLong)},
            AttentionMask{.causal = true, .key_mask = at::ones({1, 70}, at::kBool)}}) {
        const auto got = results(mask);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
      }
    }
  }
}

// NaN in the values of the first text would reach the second one through products with zeros.
TEST(FastAttention, KeysOfTextsBefore_AreNotRead) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor q = random({1, 1, 96, 16}, 1, type).detach();
    Tensor v = random({1, 1, 96, 16}, 2, type).detach();
    v.narrow(2, 0, 48).fill_(std::numeric_limits<double>::quiet_NaN());
    Tensor first = at::zeros({1, 96}, at::kLong);
    first.narrow(1, 48, 48).fill_(48);
    const Tensor out = fast_attention(q, q, v, {.causal = true, .first_key = first});
    EXPECT_TRUE(out.narrow(2, 0, 48).isnan().all().item<bool>());
    EXPECT_FALSE(out.narrow(2, 48, 48).isnan().any().item<bool>());
  }
}

TEST(FastAttention, FirstKeysThatDoNotFit_AreRefused) {
  const Tensor q = at::ones({2, 1, 4, 16}), k = at::ones({2, 1, 5, 16});
  const auto error_of = [&](const Tensor& first, bool causal) {
    const AttentionMask mask{.causal = causal, .first_key = first};
    return test::thrown_by([&] { fast_attention(q, k, k, mask); });
  };
  const Tensor own = at::arange(1, 5).expand({2, 4}).contiguous();  // each query sees its own key
  EXPECT_EQ(fast_attention(q, k, k, {.causal = true, .first_key = own}).sizes(), q.sizes());
  EXPECT_EQ(error_of(own, false).code(), Code::kShape);
  EXPECT_EQ(error_of(own.narrow(0, 0, 1), true).code(), Code::kShape);
  EXPECT_EQ(error_of(own.to(at::kInt), true).code(), Code::kShape);
  EXPECT_EQ(error_of(own - 2, true).code(), Code::kShape);
  const std::string message = error_of(own + 1, true).what();
  EXPECT_NE(message.find("first_key of query 0 is 2; expected 0 to its own key, 1"),
            std::string::npos)
      << message;
}

TEST(FastAttention, Divisor_ReplacesTheRootOfTheWidth) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    expect_equal({1, 2, 2, 33, 33, 32}, {.causal = true, .divisor = 9}, type);
    expect_equal({1, 2, 2, 1, 33, 32}, {.causal = true, .divisor = 2.5}, type);
  }
}

// One key dim with the values 8 and -8 and the query 1: scores are cap tanh(+-8 / cap), and the
// result is the weight of the first key.
TEST(FastAttention, SoftCapOfTwoKeys_IsTheLogisticFunctionOfTheCappedScore) {
  Tensor q = at::zeros({1, 1, 1, 16}), k = at::zeros({1, 1, 2, 16}), v = at::zeros({1, 1, 2, 16});
  q[0][0][0][0] = 1;
  k[0][0][0][0] = 8;
  k[0][0][1][0] = -8;
  v[0][0][0][0] = 1;
  q.requires_grad_();
  const double cap = 4, t = std::tanh(8 / cap), weight = 1 / (1 + std::exp(-2 * cap * t));
  const Tensor y = fast_attention(q, k, v, {.divisor = 1, .soft_cap = cap})[0][0][0][0];
  EXPECT_NEAR(y.item<double>(), weight, 1e-6);
  y.backward();
  // d/dq of the logistic function of 2 cap tanh(8 q / cap).
  EXPECT_NEAR(q.grad()[0][0][0][0].item<double>(), weight * (1 - weight) * 16 * (1 - t * t), 1e-6);
}

// The softmax of one large score is 1 whatever the scores are, so nothing changes with them: p ds -
// p sum of p ds is exactly 0, where the rounding of one of its terms would be noise.
TEST(FastAttention, KeyWithAllTheAttention_LeavesNoGradientOfTheScores) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double dropped : {0.0, 0.25}) {
      Tensor q = random({1, 2, 3, 32}, 1, type).detach(),
             k = random({1, 2, 20, 32}, 2, type).detach();
      q.select(3, 0).fill_(1);
      k.select(3, 0).zero_();
      k.select(2, 0).select(2, 0).fill_(4096);
      const Tensor v = random({1, 2, 20, 32}, 3, type);
      q.requires_grad_();
      k.requires_grad_();
      const Tensor y = fast_attention(
          q, k, v, {.divisor = 1, .dropout = {.p = dropped, .key = 5, .num_heads = 2}});
      y.backward(random({1, 2, 3, 32}, 4, type).detach());
      EXPECT_EQ(q.grad().abs().max().item<double>(), 0) << type << " " << dropped;
      EXPECT_EQ(k.grad().abs().max().item<double>(), 0) << type << " " << dropped;
    }
  }
}

// Scores so large that their log-sum-exp, 2^30 + log 2, rounds to 2^30: both keys have half of the
// attention all the same, and dS = (1/2) (1 - 0), (1/2) (-1 - 0).
TEST(FastAttention, LargeEqualScores_ShareTheAttentionInBackward) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Tensor q = at::zeros({1, 1, 2, 16}, type), k = at::zeros({1, 1, 2, 16}, type),
           v = at::zeros({1, 1, 2, 16}, type);
    q.select(3, 0).fill_(1 << 15);
    k.select(3, 0).fill_(1 << 15);
    v[0][0][0][0] = 1;
    v[0][0][1][0] = -1;
    for (Tensor* t : {&q, &k, &v}) t->requires_grad_();
    fast_attention(q, k, v, {.divisor = 1}).select(3, 0).sum().backward();
    for (const int64_t key : {0, 1}) {
      EXPECT_EQ(v.grad()[0][0][key][0].item<double>(), 1) << "two queries, half each";
      EXPECT_EQ(k.grad()[0][0][key][0].item<double>(), (key == 0 ? 1 : -1) * (1 << 15));
    }
    EXPECT_EQ(q.grad().abs().max().item<double>(), 0);
  }
}

TEST(FastAttention, SharedKvHeads_AddTheirGradients) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    expect_equal({2, 4, 2, 33, 33, 32}, {.causal = true, .kv_head = {0, 0, 1, 1}}, type);
    expect_equal({2, 4, 2, 1, 33, 32}, {.causal = true, .kv_head = {0, 0, 1, 1}}, type);
    expect_equal({1, 3, 2, 20, 20, 16}, {.causal = true, .kv_head = {0, 1, 1}}, type);
  }
}

// So few KV heads for the threads that backward divides the queries of each into parts.
TEST(FastAttention, FewKvHeads_AddTheGradientsOfPartsOfTheQueries) {
  const int threads = at::get_num_threads();
  at::set_num_threads(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    expect_equal({1, 4, 1, 400, 400, 32}, {.causal = true, .kv_head = {0, 0, 0, 0}}, type);
    expect_equal({1, 5, 2, 260, 300, 48}, {.causal = true, .kv_head = {0, 1, 1, 1, 1}}, type);
    expect_equal({2, 4, 2, 300, 300, 16},
                 {.causal = true, .window = 70, .kv_head = {0, 0, 1, 1}, .soft_cap = 2}, type);
    expect_equal({1, 2, 2, 600, 600, 16}, {.causal = false, .dropout = {.p = 0.2, .num_heads = 2}},
                 type);
  }
  at::set_num_threads(threads);
}

TEST(FastAttention, PaddedKeys_AreMaskedAndPaddedQueriesAttendToThemselves) {
  Tensor key_mask = at::ones({3, 40}, at::kBool);
  key_mask[0].narrow(0, 30, 10).fill_(false);  // on the right
  key_mask[1].narrow(0, 0, 13).fill_(false);   // on the left: queries 0 to 12 have no visible key
  key_mask[2].fill_(false);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool causal : {true, false}) {
      expect_equal({3, 2, 2, 40, 40, 16}, {.causal = causal, .key_mask = key_mask}, type);
      expect_equal({3, 2, 2, 1, 40, 16}, {.causal = causal, .key_mask = key_mask}, type);
      expect_equal({3, 2, 2, 7, 40, 16}, {.causal = causal, .key_mask = key_mask}, type);
    }
  }
}

TEST(FastAttention, OneKeyMask_IsForAllSequences) {
  const Tensor rows = at::ones({3, 40}, at::kBool);  // other rows follow the first one in memory
  rows[0].narrow(0, 20, 20).fill_(false);
  const Tensor one = rows.narrow(0, 0, 1);
  const Tensor q = random({3, 2, 40, 16}, 1, at::kFloat).detach();
  EXPECT_TRUE(at::equal(fast_attention(q, q, q, {.key_mask = one}),
                        fast_attention(q, q, q, {.key_mask = one.expand({3, 40}).clone()})));
}

TEST(FastAttention, SizesThatDoNotFit_AreRefused) {
  const Tensor q = at::ones({2, 4, 5, 16}), k = at::ones({2, 2, 5, 16});
  const std::vector<int64_t> heads = {0, 0, 1, 1};
  EXPECT_EQ(fast_attention(q, k, k, {.causal = true, .kv_head = heads}).sizes(), q.sizes());
  const auto refused = [&](const Tensor& keys, const Tensor& values, const AttentionMask& mask) {
    EXPECT_EQ(test::thrown_by([&] { fast_attention(q, keys, values, mask); }).code(), Code::kShape);
  };
  const Tensor few = at::ones({2, 2, 3, 16});  // T = 5 queries: the first two precede all keys
  refused(few, few, {.causal = true, .kv_head = heads});
  refused(few, few, {.key_mask = at::ones({2, 3}, at::kBool), .kv_head = heads});
  refused(k, few, {.kv_head = heads});
  const Tensor wide = at::ones({2, 2, 5, 32}), one = at::ones({1, 2, 5, 16});
  refused(wide, wide, {.kv_head = heads});
  refused(one, one, {.kv_head = heads});
  refused(k, k, {});
  refused(k, k, {.window = 2, .kv_head = heads});
  refused(k, k, {.kv_head = heads, .divisor = -1});
  refused(k, k, {.kv_head = heads, .soft_cap = -1});
  refused(k, k, {.kv_head = {0, 1}});
  refused(k, k, {.kv_head = {0, 0, 1, 2}});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 5}, {2, 4}, {5}}) {
    refused(k, k, {.key_mask = at::ones(shape, at::kBool), .kv_head = heads});
  }
}

TEST(FastAttention, NaN_StaysNaN) {
  Tensor q = at::ones({1, 1, 4, 16});
  const Tensor k = at::ones({1, 1, 4, 16});
  q[0][0][2][3] = std::numeric_limits<float>::quiet_NaN();
  for (const double cap : {0, 2}) {
    const Tensor out = fast_attention(q, k, k, {.causal = true, .soft_cap = cap});
    EXPECT_TRUE(out[0][0][2].isnan().all().item<bool>());
    EXPECT_FALSE(out[0][0][1].isnan().any().item<bool>());
  }
}

// bf16 keys and values give the same bits as their conversion to fp32.
TEST(FastAttention, Bf16Keys_GiveTheBitsOfTheirFp32Values) {
  Tensor key_mask = at::ones({2, 40}, at::kBool);
  key_mask[1].narrow(0, 0, 13).fill_(false);
  for (const int64_t T : {1, 7, 40}) {
    const Tensor q = random({2, 4, T, 48}, 1, at::kFloat).detach();
    const Tensor k = random({2, 2, 40, 48}, 2, at::kBFloat16).detach();
    const Tensor v = random({2, 2, 40, 48}, 3, at::kBFloat16).detach();
    ASSERT_TRUE(takes_fast_attention(q, k, v));
    for (const AttentionMask& mask :
         {AttentionMask{.causal = true, .kv_head = {0, 0, 1, 1}},
          AttentionMask{.key_mask = key_mask, .kv_head = {0, 1, 1, 1}}}) {
      const Tensor got = fast_attention(q, k, v, mask);
      EXPECT_EQ(got.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(got, fast_attention(q, k.to(at::kFloat), v.to(at::kFloat), mask)))
          << "T=" << T;
    }
  }
}

// More keys than a part of them that stays in the cache: 128 of 64 in bf16, 64 in fp32.
TEST(FastAttention, OneQuery_ReadsTheKeysInParts) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t S : {63, 64, 65, 129, 700}) {
      const std::vector<int64_t> kv_head{0, 0, 0, 1, 1};
      expect_equal({2, 5, 2, 1, S, 64}, {.causal = true, .kv_head = kv_head}, type);
      expect_equal({1, 8, 2, 1, S, 64}, {.causal = true, .kv_head = {0, 0, 0, 0, 0, 0, 0, 1}},
                   type);
      expect_equal({1, 5, 2, 1, S, 80},
                   {.causal = true, .window = 40, .kv_head = kv_head, .soft_cap = 3}, type);
    }
  }
}

TEST(FastAttention, Int8KeysOfOneQuery_GiveTheResultOfTheirValues) {
  const std::vector<int64_t> kv_head{0, 0, 0, 1, 1};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t S : {1, 255, 257, 700}) {
      for (const int64_t window : {0, 200}) {
        const AttentionMask mask{.causal = true, .window = window, .kv_head = kv_head};
        const Tensor q = random({2, 5, 1, 64}, 1, type).detach();
        // A part of a cache with room for more tokens.
        const Tensor k = to_int8_rows(random({2, 2, S + 9, 64}, 2, type)).narrow(2, 3, S);
        const Tensor v = to_int8_rows(random({2, 2, S + 9, 64}, 3, type)).narrow(2, 3, S);
        ASSERT_TRUE(takes_fast_attention(q, k, v));
        const Tensor want = defined(q.to(at::kDouble), from_int8_rows(k, at::kDouble),
                                    from_int8_rows(v, at::kDouble), mask);
        const Tensor got = fast_attention(q, k, v, mask).to(at::kDouble);
        // As in expect_equal; the result of bf16 is rounded once.
        const double bound = type == at::kBFloat16
                                 ? std::ldexp(1, -8)
                                 : std::ldexp(1, -23) * (8 + 4 * std::sqrt(static_cast<double>(S)));
        EXPECT_LE((got - want).abs().max().item<double>(),
                  bound * (1 + want.abs().max().item<double>()))
            << S << " " << window;
      }
    }
  }
  const Tensor two = at::ones({1, 1, 2, 16}), rows = to_int8_rows(two);
  EXPECT_FALSE(takes_fast_attention(two, rows, rows)) << "several queries";
}

TEST(Int8Rows, Numbers_AreRoundedToTheNearestOf255Steps) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [num_rows, width] : {std::pair(300, 1), {300, 7}, {300, 64}, {1, 6}}) {
      const Tensor x = random({num_rows, 1, width}, 5, type).detach();
      const Tensor rows = to_int8_rows(x);
      EXPECT_EQ(rows.size(2), width + 4);
      EXPECT_GE(rows.narrow(2, 0, width).min().item<int64_t>(), -127);
      const Tensor wide = x.to(at::kDouble);
      const Tensor steps = wide.abs().amax(-1, true) / 127;
      const Tensor error = (from_int8_rows(rows, at::kDouble) - wide).abs();
      // Half a step, and the roundings of the scale and of the quotient in fp32.
      EXPECT_TRUE(error.le(steps * 0.5 + 127 * steps * std::ldexp(1, -22)).all().item<bool>());
    }
  }
  EXPECT_TRUE(
      at::equal(from_int8_rows(to_int8_rows(at::zeros({2, 16})), at::kFloat), at::zeros({2, 16})));
}

TEST(Int8Rows, NanAndInfinity_MakeTheirRowNan) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL, -HUGE_VAL}) {
    Tensor x = at::ones({2, 16});
    x[0][3] = bad;
    const Tensor back = from_int8_rows(to_int8_rows(x), at::kFloat);
    EXPECT_TRUE(back[0].isnan().all().item<bool>()) << bad;
    EXPECT_TRUE(at::allclose(back[1], x[1]));
  }
}

TEST(FastAttention, OtherTypesAndWidths_AreNotSupported) {
  const Tensor good = at::ones({1, 1, 4, 16});
  EXPECT_TRUE(takes_fast_attention(good, good, good));
  const Tensor wide = good.to(at::kDouble);
  EXPECT_FALSE(takes_fast_attention(wide, wide, wide));
  const Tensor odd = at::ones({1, 1, 4, 24});
  EXPECT_FALSE(takes_fast_attention(odd, odd, odd));
  const Tensor narrow = good.to(at::kBFloat16);
  EXPECT_FALSE(takes_fast_attention(good, narrow, good));
  EXPECT_FALSE(takes_fast_attention(narrow, good, good));
  EXPECT_FALSE(takes_fast_attention(good.clone().requires_grad_(), narrow, narrow));
  const Tensor none = at::ones({1, 0, 4, 16});
  EXPECT_FALSE(takes_fast_attention(none, none, none));
}

}  // namespace
}  // namespace cleave::attention_test
