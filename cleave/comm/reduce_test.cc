#include "cleave/comm/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/comm/float16.h"

namespace cleave {
namespace {

TEST(Reduce, Fp32OverThreeInputs_AddsFromTheFirstToTheLast) {
  // (1e8 + 3) - 1e8 is 0 in fp32; any other order gives 3.
  const std::vector<float> a(3000, 1e8F), b(3000, 3.0F), c(3000, -1e8F);
  const std::vector<const void*> in{a.data(), b.data(), c.data()};
  std::vector<float> sum(3000);
  void* out = sum.data();
  reduce(in, {&out, 1}, 3000, DType::kF32, ReduceOp::kSum);
  for (const float value : sum) EXPECT_EQ(value, (1e8F + 3.0F) - 1e8F);
}

TEST(Reduce, Bf16_RoundsOnceAtTheEnd) {
  // 256 + 1 is 257 in fp32 and 256 in bf16: rounding each partial sum would give 256.
  const uint16_t large = fp32_to_bf16(256), one = fp32_to_bf16(1);
  const std::vector<const void*> in{&large, &one, &one};
  uint16_t sum = 0;
  void* out = &sum;
  reduce(in, {&out, 1}, 1, DType::kBf16, ReduceOp::kSum);
  EXPECT_EQ(bf16_to_fp32(sum), 258.0F);
}

TEST(Reduce, MaxWithNan_IsNanWhereverItStands) {
  const float nan = std::nanf("");
  const std::vector<float> a{nan, 1, -2}, b{5, nan, -3};
  const std::vector<const void*> in{a.data(), b.data()};
  std::vector<float> largest(3);
  void* out = largest.data();
  reduce(in, {&out, 1}, 3, DType::kF32, ReduceOp::kMax);
  EXPECT_TRUE(std::isnan(largest[0]));
  EXPECT_TRUE(std::isnan(largest[1]));
  EXPECT_EQ(largest[2], -2.0F);
}

TEST(Reduce, Int64_WrapsInSumsAndKeepsTheSignInMaxima) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> a{most, -5}, b{1, -7};
  const std::vector<const void*> in{a.data(), b.data()};
  std::vector<int64_t> result(2);
  void* out = result.data();
  reduce(in, {&out, 1}, 2, DType::kI64, ReduceOp::kSum);
  EXPECT_EQ(result, (std::vector<int64_t>{std::numeric_limits<int64_t>::min(), -12}));
  reduce(in, {&out, 1}, 2, DType::kI64, ReduceOp::kMax);
  EXPECT_EQ(result, (std::vector<int64_t>{most, -5}));
}

TEST(Reduce, OutputsThatAreInputs_GetTheWholeSum) {
  std::vector<double> a(2500, 1.5), b(2500, 2.0);
  const std::vector<const void*> in{a.data(), b.data()};
  const std::vector<void*> out{a.data(), b.data()};
  reduce(in, out, 2500, DType::kF64, ReduceOp::kSum);
  EXPECT_EQ(a, std::vector<double>(2500, 3.5));
  EXPECT_EQ(b, a);
}

TEST(Reduce, Bool_IsNotDefined) {
  EXPECT_FALSE(can_reduce(DType::kBool));
  EXPECT_TRUE(can_reduce(DType::kF16));
}

}  // namespace
}  // namespace cleave
