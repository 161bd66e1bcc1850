#include "cleave/nn/relative_bias.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::relative_bias_test {
namespace {

/// The buckets of keys at these distances after the query at 200.
std::vector<int64_t> buckets_at(const std::vector<int64_t>& ahead, const RelativeBiasOptions& o,
                                bool causal) {
  const Tensor row = relative_buckets(o, causal, {200, 201}, 701, at::kCPU)[0];
  std::vector<int64_t> out;
  for (const int64_t a : ahead) out.push_back(row[200 + a].item<int64_t>());
  return out;
}

// Oracle: T5Attention._relative_position_bucket of transformers 5.23.0.
TEST(RelativeBias, Buckets_AreThoseOfTransformers) {
  using Buckets = std::vector<int64_t>;
  const std::vector<int64_t> ahead{-200, -128, -127, -100, -64, -50, -33, -16, -15, -9,
                                   -8,   -7,   -1,   0,    1,   7,   8,   9,   11,  12,
                                   16,   23,   32,   45,   46,  64,  91,  128, 500};
  EXPECT_EQ(buckets_at(ahead, {}, /*causal=*/true),
            (Buckets{31, 31, 31, 30, 26, 24, 21, 16, 15, 9, 8, 7, 1, 0, 0,
                     0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0, 0, 0, 0}));
  EXPECT_EQ(buckets_at(ahead, {}, /*causal=*/false),
            (Buckets{15, 15, 15, 15, 14, 13, 12, 10, 9,  8,  8,  7,  1,  0, 17,
                     23, 24, 24, 24, 25, 26, 27, 28, 28, 29, 30, 31, 31, 31}));
  const std::vector<int64_t> near{-8, -5, -4, -3, -2, -1, 0, 1, 2, 3, 8};
  const RelativeBiasOptions few{.num_buckets = 6, .max_distance = 4};
  EXPECT_EQ(buckets_at(near, few, /*causal=*/true), (Buckets{5, 5, 5, 3, 2, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(buckets_at(near, few, /*causal=*/false), (Buckets{2, 2, 2, 2, 2, 1, 0, 4, 5, 5, 5}));
}

// While an answer is generated, the queries are the last tokens.
TEST(RelativeBias, LaterQueries_HaveTheRowsOfTheWhole) {
  const Tensor table = test::numbers({32, 3}, 1);
  const Tensor whole = relative_bias(table, {}, /*causal=*/true, {0, 40}, 40);
  EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{1, 3, 40, 40}));
  const Tensor last = relative_bias(table, {}, /*causal=*/true, {38, 40}, 40);
  EXPECT_TRUE(at::equal(last, whole.narrow(2, 38, 2)));
}

// In bf16, a sum of ones would end at 256.
TEST(RelativeBias, GradientOfABf16Table_IsSummedInFp32) {
  const Tensor table = at::zeros({2, 1}, at::kBFloat16).requires_grad_();
  relative_bias(table, {.num_buckets = 2, .max_distance = 2}, true, {0, 40}, 40).sum().backward();
  // In 780 of the 40 x 40 pairs, the key comes before the query.
  EXPECT_TRUE(at::equal(table.grad().to(at::kFloat).flatten(),
                        at::tensor({820.0F, 780.0F}).to(at::kBFloat16).to(at::kFloat)));
}

TEST(RelativeBias, OptionsOutOfRange_AreRefused) {
  const auto refuses = [](const RelativeBiasOptions& o, bool causal) {
    return test::thrown_by([&] { check_relative_bias(o, causal); }).code() == Code::kShape;
  };
  EXPECT_TRUE(refuses({.num_buckets = 1}, true));
  EXPECT_TRUE(refuses({.num_buckets = 2}, false));
  EXPECT_TRUE(refuses({.num_buckets = 7}, false));
  EXPECT_TRUE(refuses({.num_buckets = 32, .max_distance = 16}, true));
  check_relative_bias({.num_buckets = 2, .max_distance = 2}, true);
  check_relative_bias({.num_buckets = 32, .max_distance = 9}, false);
}

}  // namespace
}  // namespace cleave::relative_bias_test
