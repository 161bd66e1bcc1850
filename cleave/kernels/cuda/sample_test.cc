// The kernels that sample tokens. Oracle: the definition in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/decode.h"
#include "tests/support/fiber_kernels.h"
#include "tests/support/ranks.h"

namespace cleave::cuda_sample_test {
namespace {

using test::FiberKernels;
using test::numbers;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

/// The result for logits [R, V] and a number for each row, the same for both orders of threads.
Tensor sampled(const Tensor& logits, const TokenSampling& sampling, const Tensor& uniforms) {
  std::vector<Tensor> got;
  for (const bool is_reversed : {false, true}) {
    const FiberKernels kernels(is_reversed);
    const Tensor ids = at::full({logits.size(0)}, -1, at::kLong);
    const Tensor num_keys = at::tensor({int64_t{7}}, at::kLong);
    got.push_back(sample_tokens(logits, sampling, uniforms, ids, num_keys));
    EXPECT_EQ(num_keys.item<int64_t>(), 8);
    const Tensor chosen = got.back().select(1, 0).to(at::kLong);
    EXPECT_TRUE(chosen.eq(ids).bitwise_or(chosen.eq(-1)).all().item<bool>());
    EXPECT_TRUE(ids.ge(0).bitwise_and(ids.lt(logits.size(1))).all().item<bool>());
  }
  EXPECT_TRUE(at::equal(got[0], got[1]) || got[0].isnan().any().item<bool>());
  return got[0];
}

/// The token of a row by the definition: the order of preference, then the order of ids.
int64_t defined(const Tensor& row, const TokenSampling& s, double uniform) {
  const Tensor scores = row.to(at::kFloat) / static_cast<float>(s.temperature);
  const auto size = static_cast<size_t>(scores.numel());
  const std::vector<float> score(scores.const_data_ptr<float>(),
                                 scores.const_data_ptr<float>() + size);
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] > score[b]; });
  const double top = score[order[0]];
  std::vector<double> mass(size);
  for (size_t i = 0; i < size; ++i) mass[i] = std::exp(static_cast<double>(score[i]) - top);
  if (s.top_k > 0 && s.top_k < static_cast<int64_t>(size)) {
    const float least = score[order[static_cast<size_t>(s.top_k) - 1]];
    for (size_t i = 0; i < size; ++i) mass[i] = score[i] >= least ? mass[i] : 0;
  }
  const double all = std::accumulate(mass.begin(), mass.end(), 0.0);
  double kept = 0;
  for (const size_t i : order) {
    if (s.top_p < 1 && kept >= s.top_p * all) mass[i] = 0;
    kept += mass[i];
  }
  double sum = 0;
  for (size_t i = 0; i < size; ++i) {
    sum += mass[i];
    if (sum > uniform * kept) return static_cast<int64_t>(i);
  }
  return -1;
}

void expect_defined(const Tensor& logits, const TokenSampling& s, const Tensor& uniforms) {
  const Tensor wide = logits.to(at::kDouble);
  const Tensor largest = wide.amax(1, true);
  const Tensor sums = (wide - largest).exp().sum(1);
  const Tensor got = sampled(logits, s, uniforms);
  for (int64_t r = 0; r < logits.size(0); ++r) {
    const auto id = got[r][0].item<int64_t>();
    ASSERT_EQ(id, defined(logits[r], s, uniforms[r].item<double>()))
        << logits.scalar_type() << " " << logits.size(1) << " " << s.temperature << " " << s.top_k
        << " " << s.top_p;
    EXPECT_EQ(got[r][1].item<double>(), wide[r][id].item<double>());
  }
  EXPECT_TRUE(at::equal(got.select(1, 2), largest.squeeze(1)));
  // A thread adds up to 8 numbers; parts are rescaled; each step rounds by 2^-24.
  EXPECT_LE((got.select(1, 3) / sums - 1).abs().max().item<double>(), 100 * 0x1p-24);
}

TEST(CudaSampleTokens, AnySettingsAndShape_EqualTheDefinition) {
  const Tensor uniforms = at::tensor({0.0, 0.37, 0.9999, 0.61}, at::kDouble);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 300, 3000}) {
      for (const TokenSampling& s : std::vector<TokenSampling>{{.temperature = 3},
                                                               {.temperature = 0.7, .top_k = 50},
                                                               {.top_k = 1},
                                                               {.top_k = 100'000},
                                                               {.temperature = 0.9, .top_p = 0.7},
                                                               {.top_k = 40, .top_p = 0.9},
                                                               {.top_p = 1e-9}}) {
        expect_defined((numbers({4, width}, 1) * 4).to(type), s, uniforms);
      }
    }
  }
}

TEST(CudaSampleTokens, ListsOfManyParts_AreMerged) {
  const Tensor logits = (numbers({1, 40'000}, 2) * 4).to(at::kFloat);  // 20 parts, 2 merges
  expect_defined(logits, {.top_k = 200, .top_p = 0.98}, at::tensor({0.93}, at::kDouble));
  expect_defined(logits, {.temperature = 2}, at::tensor({0.93}, at::kDouble));
}

TEST(CudaSampleTokens, EqualLogits_AreKeptTogether) {
  const Tensor uniforms = at::tensor({0.505}, at::kDouble);
  const Tensor few = at::zeros({1, 200}, at::kFloat);
  EXPECT_EQ(sampled(few, {.top_k = 5}, uniforms)[0][0].item<int64_t>(), 101);   // all 200 are kept
  EXPECT_EQ(sampled(few, {.top_p = 0.5}, uniforms)[0][0].item<int64_t>(), 50);  // the first 100
}

// More than the list of the best tokens holds.
TEST(CudaSampleTokens, TooManyTokensToCompare_AreReported) {
  const Tensor uniforms = at::tensor({0.505}, at::kDouble);
  Tensor logits = at::zeros({1, 5000}, at::kFloat);
  EXPECT_EQ(sampled(logits, {.top_k = 5}, uniforms)[0][0].item<int64_t>(), -1);
  EXPECT_EQ(sampled(logits, {.top_p = 0.5}, uniforms)[0][0].item<int64_t>(), -1);
  EXPECT_EQ(sampled(logits, {}, uniforms)[0][0].item<int64_t>(), 2525);
  logits[0][4000] = 1;
  EXPECT_EQ(sampled(logits, {.top_k = 1}, uniforms)[0][0].item<int64_t>(), 4000);
  EXPECT_FALSE(takes_sampling({.top_k = 256}, 5000));
  EXPECT_TRUE(takes_sampling({.top_k = 255}, 5000));
  EXPECT_TRUE(takes_sampling({.top_k = 5000}, 5000));
  EXPECT_FALSE(takes_sampling({}, int64_t{1} << 20));
}

TEST(CudaSampleTokens, LogitsThatAreNotFinite_ShowInTheSum) {
  const Tensor uniforms = at::tensor({0.3, 0.4}, at::kDouble);
  for (const TokenSampling& s : {TokenSampling{}, TokenSampling{.top_k = 5}}) {
    Tensor logits = at::full({2, 5000}, -INFINITY, at::kFloat);
    logits[0][4321] = -2;
    const Tensor got = sampled(logits, s, uniforms);
    EXPECT_EQ(got[0][0].item<int64_t>(), 4321);
    EXPECT_EQ(got[0][3].item<double>(), 1);
    EXPECT_EQ(got[1][2].item<double>(), -INFINITY);
    EXPECT_EQ(got[1][3].item<double>(), 0);
    logits[1][17] = NAN;
    EXPECT_TRUE(std::isnan(sampled(logits, s, uniforms)[1][3].item<double>()));
  }
}

}  // namespace
}  // namespace cleave::cuda_sample_test
