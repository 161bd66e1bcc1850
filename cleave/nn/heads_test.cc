#include "cleave/nn/heads.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/kernels/cpu/wide_product.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::heads_test {
namespace {

using test::numbers;
using test::thrown_by;

TEST(HeadShard, UnevenHeads_HaveTheirKvHeadsOnTheSameRank) {
  // Six heads on four ranks: 0 1, 2 3, 4, 5; with three KV heads: 0, 1, 2, 2.
  const HeadShard shard = HeadShard::make(6, 3, 10, 4);
  EXPECT_EQ(shard.query->widths(), (std::vector<int64_t>{20, 20, 10, 10}));
  EXPECT_EQ(shard.kv->ranges(2), (std::vector<Range>{{20, 30}}));
  EXPECT_EQ(shard.kv->ranges(3), (std::vector<Range>{{20, 30}}));
  EXPECT_TRUE(shard.kv->owned(3).empty());
  EXPECT_EQ(shard.query->family(), shard.kv->family());
  // Six heads with two KV heads: rank 1 of 4 has heads 2 and 3, which use different KV heads.
  const HeadShard two = HeadShard::make(6, 2, 10, 4);
  EXPECT_EQ(two.kv->ranges(1), (std::vector<Range>{{0, 20}}));
  EXPECT_TRUE(at::equal(kv_head_of(two, 6, 2, 1), at::tensor({0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(kv_head_of(two, 6, 2, 3), at::tensor({0}, at::kLong)));
}

TEST(HeadShard, FusedColumns_AreEachRanksQueriesKeysAndValues) {
  const SplitPtr fused = fused_columns(HeadShard::make(6, 3, 10, 4));
  EXPECT_EQ(fused->whole(), 60 + 30 + 30);
  EXPECT_EQ(fused->ranges(0), (std::vector<Range>{{0, 20}, {60, 70}, {90, 100}}));
  EXPECT_EQ(fused->ranges(3), (std::vector<Range>{{50, 60}, {80, 90}, {110, 120}}));
  EXPECT_EQ(fused->owned(3), (std::vector<Range>{{50, 60}}));  // rank 2 holds the KV head first
  EXPECT_FALSE(fused_columns(HeadShard::make(25, 25, 64, 2))->overlaps());
}

TEST(HeadShard, MoreRanksThanHeads_AreRefusedWithTheValidSizes) {
  const Error ranks = thrown_by([] { (void)HeadShard::make(6, 3, 10, 7); });
  EXPECT_EQ(ranks.code(), Code::kShape);
  EXPECT_STREQ(ranks.what(), "tp=7 is more than num_attention_heads=6; choose tp from 1 to 6");
  const Error group = thrown_by([] { (void)HeadShard::make(6, 4, 10, 1); });
  EXPECT_EQ(group.code(), Code::kShape);
  EXPECT_NE(std::string(group.what()).find("num_key_value_heads=4"), std::string::npos);
}

/// The result of causal attention with grouped heads, and the gradients of q, k and v.
using Results = std::vector<Tensor>;

Tensor leaf(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
  return numbers(shape, seed).to(type).requires_grad_();
}

/// Explicit scores and softmax in fp64; query heads 0 and 1 use KV head 0.
Results in_fp64(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  const auto wide = [](const Tensor& t) { return t.detach().to(at::kDouble).requires_grad_(); };
  const Tensor wq = wide(q), wk = wide(k), wv = wide(v);
  const Tensor keys = wk.repeat_interleave(2, 1), values = wv.repeat_interleave(2, 1);
  const Tensor hidden = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
  const Tensor scores = wq.matmul(keys.transpose(2, 3)) / std::sqrt(q.size(3));
  const Tensor out = scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(values);
  Results all = torch::autograd::grad({out}, {wq, wk, wv}, {dout.to(at::kDouble)});
  all.insert(all.begin(), out);
  return all;
}

// Without instructions for the type, libtorch's attention rounds scores and probabilities to 16
// bits and takes 20 to 40 times as long as in fp32.
TEST(Attend, In16BitsWithoutInstructionsForThem_IsRoundedOnce) {
  bool has_any = false;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    // bf16 heads of 16 dims have a kernel of their own.
    for (const int64_t width : {16, 20}) {
      if (!lacks_fast_products(type) || (type == at::kBFloat16 && width == 16)) continue;
      has_any = true;
      const Tensor q = leaf({2, 4, 33, width}, 1, type), k = leaf({2, 2, 33, width}, 2, type),
                   v = leaf({2, 2, 33, width}, 3, type), dout = numbers({2, 4, 33, width}, 4);
      const Tensor out = attend(q, k, v, {.kv_head = at::tensor({0, 0, 1, 1}, at::kLong)}, {});
      Results got = torch::autograd::grad({out}, {q, k, v}, {dout.to(type)});
      got.insert(got.begin(), out);
      const Results want = in_fp64(q, k, v, dout.to(type));
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].scalar_type(), type);
        // Half a unit in the last place, and sums of at most 2 x 33 fp32 products of size about 1.
        const double half_unit = type == at::kHalf ? 0x1p-11 : 0x1p-8;
        const Tensor bound = want[i].abs() * half_unit + 66 * 0x1p-22;
        const Tensor error = (got[i].to(at::kDouble) - want[i]).abs();
        EXPECT_TRUE(error.le(bound).all().item<bool>())
            << type << " " << i << ": " << (error / bound).max().item<double>() << " of the bound";
      }
    }
  }
  if (!has_any) GTEST_SKIP() << "this CPU has instructions for bf16 and fp16";
}

}  // namespace
}  // namespace cleave::heads_test
