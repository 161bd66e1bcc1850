// The kernels of decoding. Oracle: their definitions in double precision.
#include "cleave/kernels/decode.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/fiber_kernels.h"
#include "tests/support/ranks.h"

namespace cleave::cuda_decode_test {
namespace {

using test::FiberKernels;
using test::numbers;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

/// A step of two sequences, the second of which begins at `first`.
struct Step {
  int64_t heads = 4, kv_heads = 2, width = 8, half = 4, capacity = 40, num_keys = 31, first = 3;
  int64_t window = 0;
  double soft_cap = 0;
  int64_t group = heads / kv_heads, skipped = 0;  // queries of a KV head, and how many are missing
};

constexpr int64_t kBatch = 2;

struct Inputs {
  Tensor q, k, v, keys, values, cos, sin, positions, num_keys, first_key;
};

Inputs inputs_of(const Step& s, at::ScalarType type) {
  const auto make = [&](at::IntArrayRef shape, uint64_t seed) {
    return numbers(shape, seed).to(type);
  };
  Inputs in{.q = make({kBatch, 1, s.heads, s.width}, 1).transpose(1, 2),  // as projections give it
            .k = make({kBatch, 1, s.kv_heads, s.width}, 2).transpose(1, 2),
            .v = make({kBatch, 1, s.kv_heads, s.width}, 3).transpose(1, 2),
            .keys = make({kBatch, s.kv_heads, s.capacity, s.width}, 4),
            .values = make({kBatch, s.kv_heads, s.capacity, s.width}, 5),
            .cos = {},
            .sin = {},
            .positions = at::tensor({s.num_keys - 1, s.num_keys - 1 - s.first}, at::kLong),
            .num_keys = at::tensor({s.num_keys}, at::kLong),
            .first_key = at::tensor({int64_t{0}, s.first}, at::kLong)};
  // What lies behind the new token must not count.
  in.keys.narrow(2, s.num_keys, s.capacity - s.num_keys).fill_(NAN);
  in.values.narrow(2, s.num_keys, s.capacity - s.num_keys).fill_(NAN);
  if (s.half > 0) {
    const Tensor angles = numbers({s.capacity, s.half}, 6);
    in.cos = angles.cos().to(type);
    in.sin = angles.sin().to(type);
  }
  return in;
}

/// x [B, H, 1, K] at its positions, in double precision, rounded to the type.
Tensor rotated(const Tensor& x, const Inputs& in, const Step& s) {
  if (s.half == 0) return x;
  const auto angles = [&](const Tensor& t) {
    return t.to(at::kDouble).index_select(0, in.positions).view({kBatch, 1, 1, s.half});
  };
  const Tensor wide = x.to(at::kDouble);
  const Tensor a = wide.narrow(3, 0, s.half);
  const Tensor b = wide.narrow(3, s.half, s.half);
  const Tensor c = angles(in.cos), d = angles(in.sin);
  return at::cat({a * c - b * d, b * c + a * d, wide.slice(3, 2 * s.half)}, 3).to(x.scalar_type());
}

/// The definition for a cache that has the new token.
Tensor defined(const Inputs& in, const Step& s, const Tensor& keys, const Tensor& values) {
  const auto of_heads = [&](const Tensor& t) {
    const Tensor all = t.narrow(2, 0, s.num_keys).to(at::kDouble).repeat_interleave(s.group, 1);
    return all.narrow(1, s.skipped, s.heads);
  };
  const Tensor q = rotated(in.q, in, s).to(at::kDouble);
  Tensor scores =
      q.matmul(of_heads(keys).transpose(2, 3)) / std::sqrt(static_cast<double>(s.width));
  if (s.soft_cap > 0) scores = (scores / s.soft_cap).tanh() * s.soft_cap;
  const Tensor place = at::arange(s.num_keys).view({1, 1, 1, s.num_keys});
  Tensor hidden = place < in.first_key.view({kBatch, 1, 1, 1});
  if (s.window > 0) hidden = hidden.bitwise_or(place < s.num_keys - s.window);
  return scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(of_heads(values));
}

void expect_defined(const Step& s) {
  for (const at::ScalarType type : kTypes) {
    const Inputs in = inputs_of(s, type);
    const Tensor keys = in.keys.clone(), values = in.values.clone();
    keys.select(2, s.num_keys - 1).copy_(rotated(in.k, in, s).squeeze(2));
    values.select(2, s.num_keys - 1).copy_(in.v.squeeze(2));
    const Tensor want = defined(in, s, keys, values);
    std::vector<Tensor> got;
    for (const bool is_reversed : {false, true}) {
      const FiberKernels kernels(is_reversed);
      const DecodeAttention a{.keys = in.keys.clone(),
                              .values = in.values.clone(),
                              .cos = in.cos,
                              .sin = in.sin,
                              .positions = in.positions,
                              .num_keys = in.num_keys,
                              .first_key = in.first_key,
                              .group = s.group,
                              .skipped = s.skipped,
                              .window = s.window,
                              .divisor = std::sqrt(static_cast<double>(s.width)),
                              .soft_cap = s.soft_cap};
      got.push_back(decode_attention(in.q, in.k, in.v, a));
      EXPECT_GE(kernels.launches(), 2);
      // A sum of two products has an error of two roundings, and its bf16 may be the other
      // neighbour.
      const double bound = type == at::kFloat ? 0x1p-21 : 0x1p-6;
      const auto cache_error = [&](const Tensor& cache, const Tensor& wanted) {
        const auto part = [&](const Tensor& t) {
          return t.narrow(2, 0, s.num_keys).to(at::kDouble);
        };
        return (part(cache) - part(wanted)).abs().max().item<double>();
      };
      EXPECT_LE(cache_error(a.keys, keys), bound);
      EXPECT_EQ(cache_error(a.values, values), 0);
    }
    EXPECT_TRUE(at::equal(got[0], got[1]));
    // The result is a mean of numbers of size at most 5. fp32: scores of size 10 are off by
    // 2^-23 (10 + width), and so are the weights; bf16: the keys and queries are rounded too.
    const double bound =
        type == at::kFloat ? 5 * 0x1p-23 * static_cast<double>(20 + s.width) : 5 * 0x1p-7;
    EXPECT_LE((got[0].to(at::kDouble) - want).abs().max().item<double>(), bound)
        << type << " width " << s.width << " keys " << s.num_keys << " window " << s.window;
  }
}

TEST(CudaDecodeAttention, AnyNumberOfKeys_EqualsTheDefinition) {
  for (const int64_t num_keys : {4, 31, 40}) expect_defined({.num_keys = num_keys});
  expect_defined({.capacity = 300, .num_keys = 300});  // two tiles
}

TEST(CudaDecodeAttention, AnyWidthAndHeads_EqualsTheDefinition) {
  expect_defined({.heads = 3, .kv_heads = 3, .width = 6, .half = 3});
  expect_defined({.heads = 8, .kv_heads = 1, .width = 80, .half = 40});
  expect_defined({.heads = 6, .kv_heads = 2, .width = 256, .half = 128});
  expect_defined({.width = 512, .half = 256});
}

// There are 8 query heads in groups of 4, of which the ranks have 3, 3 and 2.
TEST(CudaDecodeAttention, PartsOfGroups_EqualTheDefinition) {
  expect_defined({.heads = 3, .kv_heads = 1, .group = 4});
  expect_defined({.heads = 3, .kv_heads = 2, .group = 4, .skipped = 3});
  expect_defined({.heads = 2, .kv_heads = 1, .group = 4, .skipped = 2});
}

TEST(CudaDecodeAttention, WithoutOrWithPartOfTheRotation_EqualsTheDefinition) {
  expect_defined({.half = 0});
  expect_defined({.width = 12, .half = 2});
}

TEST(CudaDecodeAttention, WindowAndSoftCap_EqualTheDefinition) {
  expect_defined({.window = 5});
  expect_defined({.window = 30});
  expect_defined({.window = 100});
  expect_defined({.soft_cap = 2});
  expect_defined({.window = 7, .soft_cap = 0.5});
}

// Some parts have no keys yet.
TEST(CudaDecodeAttention, PartsOfManyKeys_AreAddedUp) {
  for (const int64_t num_keys : {4, 5, 700, 2100}) {
    expect_defined({.capacity = 2100, .num_keys = num_keys});
  }
  expect_defined({.capacity = 1600, .num_keys = 1500, .window = 2});
}

TEST(CudaDecodeAttention, WhatItDoesNotSupport_IsRefused) {
  const auto takes = [](at::ScalarType type, at::ScalarType cache, int64_t tokens, int64_t width) {
    return takes_decode_attention(at::empty({1, 4, tokens, width}, type), cache);
  };
  EXPECT_FALSE(takes(at::kFloat, at::kFloat, 1, 8));  // a CPU without kernels
  const FiberKernels kernels;
  EXPECT_TRUE(takes(at::kFloat, at::kFloat, 1, 8));
  EXPECT_FALSE(takes(at::kFloat, at::kBFloat16, 1, 8));
  EXPECT_FALSE(takes(at::kDouble, at::kDouble, 1, 8));
  EXPECT_FALSE(takes(at::kFloat, at::kFloat, 2, 8));
  EXPECT_FALSE(takes(at::kFloat, at::kFloat, 1, 513));
}

/// The result for some logits [R, V], the same for both orders of threads.
Tensor best_of(const Tensor& logits) {
  std::vector<Tensor> got;
  for (const bool is_reversed : {false, true}) {
    const FiberKernels kernels(is_reversed);
    const Tensor ids = at::full({logits.size(0)}, -1, at::kLong);
    const Tensor num_keys = at::tensor({int64_t{7}}, at::kLong);
    got.push_back(best_tokens(logits, ids, num_keys));
    EXPECT_EQ(kernels.launches(), 2);
    EXPECT_EQ(num_keys.item<int64_t>(), 8);
    EXPECT_TRUE(at::equal(got.back().select(1, 0).to(at::kLong), ids));
  }
  EXPECT_TRUE(at::equal(got[0], got[1]) || got[0].isnan().any().item<bool>());
  return got[0];
}

TEST(CudaBestTokens, AnyShape_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 1000, 4099, 20'000}) {
      const Tensor logits = (numbers({3, width}, 1) * 4).to(type);
      const Tensor wide = logits.to(at::kDouble);
      const auto [largest, ids] = wide.max(1);
      const Tensor sums = (wide - largest.unsqueeze(1)).exp().sum(1);
      const Tensor got = best_of(logits);
      EXPECT_TRUE(at::equal(got.select(1, 1), largest)) << type << " " << width;
      EXPECT_TRUE(at::equal(got.select(1, 2), largest));
      EXPECT_TRUE(at::equal(wide.gather(1, got.select(1, 0).to(at::kLong).unsqueeze(1)).squeeze(1),
                            largest));
      // A thread adds up to 12 quads, and sums are rescaled; each step rounds by 2^-24.
      EXPECT_LE((got.select(1, 3) / sums - 1).abs().max().item<double>(), 100 * 0x1p-24);
    }
  }
}

TEST(CudaBestTokens, OfEqualLogits_TheLowestIdIsChosen) {
  for (const int64_t first : {0, 3, 1024, 4998}) {
    Tensor logits = at::zeros({1, 5000}, at::kFloat);
    for (const int64_t id : {first, int64_t{4998}, int64_t{4999}}) logits[0][id] = 2;
    EXPECT_EQ(best_of(logits)[0][0].item<int64_t>(), first);
  }
}

TEST(CudaBestTokens, LogitsThatAreNotFinite_GiveASumThatShowsIt) {
  for (const float wrong : {NAN, INFINITY}) {
    Tensor logits = at::ones({2, 5000}, at::kFloat);
    logits[0][4500] = wrong;
    const Tensor got = best_of(logits);
    EXPECT_TRUE(std::isnan(got[0][3].item<double>()));
    EXPECT_GE(got[0][0].item<int64_t>(), 0);
    EXPECT_LT(got[0][0].item<int64_t>(), 5000);
    EXPECT_EQ(got[1][3].item<double>(), 5000);
  }
  Tensor logits = at::full({2, 5000}, -INFINITY, at::kFloat);
  logits[0][4321] = -2;
  const Tensor got = best_of(logits);
  EXPECT_EQ(got[0][0].item<int64_t>(), 4321);
  EXPECT_EQ(got[0][3].item<double>(), 1);
  EXPECT_EQ(got[1][1].item<double>(), -INFINITY);
  EXPECT_EQ(got[1][3].item<double>(), 0);
}

TEST(CudaFewRows, AnyShape_EqualsTheProduct) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{8, 1}, {24, 9}, {1000, 33}}) {
      for (int64_t rows = 1; rows <= 4; ++rows) {
        const Tensor x = numbers({rows, 1, in}, 1).to(type);
        const Tensor weight = numbers({out, in}, 2).to(type);
        const std::optional<Tensor> bias =
            rows % 2 == 0 ? std::optional(numbers({out}, 3).to(type)) : std::nullopt;
        Tensor want = x.to(at::kDouble).matmul(weight.to(at::kDouble).t());
        if (bias) want = want + bias->to(at::kDouble);
        const FiberKernels kernels;
        const std::optional<Tensor> got = device_few_rows(x, weight, bias);
        ASSERT_TRUE(got);
        EXPECT_EQ(kernels.launches(), 1);
        // Products of size 10 with errors of their own and of the sums of a lane and its warp.
        const double size = 1 + want.abs().max().item<double>();
        const double bound = type == at::kFloat ? 0x1p-23 * (10 + static_cast<double>(in)) : 0x1p-8;
        EXPECT_LE((got->to(at::kDouble) - want).abs().max().item<double>(), bound * size);
      }
    }
  }
}

TEST(CudaFewRows, WhatTheKernelDoesNotSupport_IsLeftToLibtorch) {
  const Tensor weight = numbers({3, 8}, 1).to(at::kFloat);
  const auto takes = [](const Tensor& x, const Tensor& w) {
    return device_few_rows(x, w, std::nullopt).has_value();
  };
  EXPECT_FALSE(takes(numbers({1, 8}, 2).to(at::kFloat), weight));  // a CPU without kernels
  const FiberKernels kernels;
  EXPECT_TRUE(takes(numbers({1, 8}, 2).to(at::kFloat), weight));
  EXPECT_FALSE(takes(numbers({5, 8}, 2).to(at::kFloat), weight));
  EXPECT_FALSE(takes(numbers({1, 8}, 2).to(at::kBFloat16), weight));
  EXPECT_FALSE(takes(numbers({1, 3}, 2).to(at::kFloat), weight.t()));
  const Tensor odd = numbers({3, 6}, 1).to(at::kFloat);
  EXPECT_FALSE(takes(numbers({1, 6}, 2).to(at::kFloat), odd));
}

}  // namespace
}  // namespace cleave::cuda_decode_test
