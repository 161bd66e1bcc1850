#include <cmath>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/comm/shm/collectives.h"
#include "tests/support/float16.h"

namespace cleave::reduce_test {
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

// Oracle: tests/support/float16.h, one element at a time, which has its own tests.
using Widen = float (*)(uint16_t);
using Narrow = uint16_t (*)(float);

uint16_t of_numbers(float number, Narrow narrow, Widen widen, uint16_t got) {
  const uint16_t want = narrow(number);
  // Any NaN matches any NaN.
  return std::isnan(widen(want)) && std::isnan(widen(got)) ? got : want;
}

TEST(Reduce, EveryBf16AndFp16_IsWidenedAndNarrowedAsOneByOne) {
  std::vector<uint16_t> all(65536), zeros(65536), sum(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<const void*> in{all.data(), zeros.data()};
  void* out = sum.data();
  for (const auto& [dtype, narrow, widen] :
       {std::tuple<DType, Narrow, Widen>{DType::kBf16, fp32_to_bf16, bf16_to_fp32},
        {DType::kF16, fp32_to_fp16, fp16_to_fp32}}) {
    reduce(in, {&out, 1}, 65536, dtype, ReduceOp::kSum);
    for (size_t i = 0; i < all.size(); ++i) {
      const float number = widen(all[i]) + 0.0F;
      ASSERT_EQ(sum[i], of_numbers(number, narrow, widen, sum[i])) << name(dtype) << ' ' << i;
    }
  }
}

TEST(Reduce, SumsOfBf16AndFp16_RoundToNearestTiesToEven) {
  // Adds to each bit pattern a number of about half, a quarter or more of its last place.
  constexpr size_t kCount = 65536;
  std::vector<uint16_t> a(kCount), b(kCount), sum(kCount);
  const std::vector<const void*> in{a.data(), b.data()};
  void* out = sum.data();
  for (const uint32_t step : {0x0080U, 0x0400U, 0x1801U, 0x8123U}) {
    for (size_t i = 0; i < kCount; ++i) {
      a[i] = static_cast<uint16_t>(i);
      b[i] = static_cast<uint16_t>(i - step);
    }
    for (const auto& [dtype, narrow, widen] :
         {std::tuple<DType, Narrow, Widen>{DType::kBf16, fp32_to_bf16, bf16_to_fp32},
          {DType::kF16, fp32_to_fp16, fp16_to_fp32}}) {
      reduce(in, {&out, 1}, kCount, dtype, ReduceOp::kSum);
      for (size_t i = 0; i < kCount; ++i) {
        const float number = widen(a[i]) + widen(b[i]);
        ASSERT_EQ(sum[i], of_numbers(number, narrow, widen, sum[i]))
            << name(dtype) << ' ' << a[i] << " + " << b[i];
      }
    }
  }
}

// Oracle: small whole numbers, exact in every dtype.
template <class T, class Of>
void expect_sums_at_every_size(DType dtype, const Of& of) {
  constexpr size_t kMost = 150, kRoom = kMost + 3;
  for (size_t count = 0; count <= kMost; ++count) {
    const size_t shift = count % 3;  // unaligned for vectors
    std::vector<T> a(kRoom), b(kRoom), c(kRoom), sum(kRoom, of(77)), copy(kRoom, of(77));
    for (size_t i = 0; i < kRoom; ++i) {
      a[i] = of(static_cast<int>(i % 11));
      b[i] = of(static_cast<int>(i % 7) - 3);
      c[i] = of(1);
    }
    const std::vector<const void*> in{&a[shift], &b[shift], &c[shift]};
    const std::vector<void*> out{&sum[shift], &copy[shift]};
    reduce(in, out, static_cast<int64_t>(count), dtype, ReduceOp::kSum);
    std::vector<T> want(kRoom, of(77));
    for (size_t i = shift; i < shift + count; ++i) {
      want[i] = of(static_cast<int>(i % 11) + static_cast<int>(i % 7) - 3 + 1);
    }
    ASSERT_EQ(sum, want) << name(dtype) << ", count " << count;
    ASSERT_EQ(copy, want) << name(dtype) << ", count " << count;
  }
}

TEST(Reduce, EverySizeAtEveryPlace_WritesItsElementsAndNoOthers) {
  expect_sums_at_every_size<float>(DType::kF32, [](int n) { return static_cast<float>(n); });
  expect_sums_at_every_size<double>(DType::kF64, [](int n) { return static_cast<double>(n); });
  expect_sums_at_every_size<int64_t>(DType::kI64, [](int n) { return int64_t{n}; });
  expect_sums_at_every_size<int32_t>(DType::kI32, [](int n) { return int32_t{n}; });
  expect_sums_at_every_size<uint16_t>(DType::kBf16,
                                      [](int n) { return fp32_to_bf16(static_cast<float>(n)); });
  expect_sums_at_every_size<uint16_t>(DType::kF16,
                                      [](int n) { return fp32_to_fp16(static_cast<float>(n)); });
}

// Oracle: one call with all inputs.
TEST(Reduce, InParts_HasTheBitsOfOneCall) {
  std::vector<std::vector<double>> wide;
  std::vector<std::vector<uint16_t>> halves;
  for (int k = 0; k < 5; ++k) {
    std::vector<double>& numbers = wide.emplace_back();
    for (int i = 0; i < 301; ++i) {
      numbers.push_back(static_cast<double>((i * 7919 + k * 104729) % 10007) * (k == 1 ? 1e-3 : 1));
    }
    std::vector<uint16_t>& half = halves.emplace_back();
    for (const double number : numbers) half.push_back(fp32_to_bf16(static_cast<float>(number)));
  }
  const auto expect_same = [](const auto& all, DType dtype, ReduceOp op) {
    using T = std::decay_t<decltype(all[0][0])>;
    std::vector<const void*> in;
    for (const auto& one : all) in.push_back(one.data());
    std::vector<T> want(301), got(301);
    void* out = want.data();
    reduce(in, {&out, 1}, 301, dtype, op);
    std::vector<double> first(301), second(301);  // room for any accumulator
    const std::span<const void* const> inputs = in;
    reduce_part(inputs.first(2), {}, first.data(), 301, dtype, op);
    reduce_part(inputs.subspan(2, 1), {.before = first.data()}, second.data(), 301, dtype, op);
    reduce_part(inputs.subspan(3), {.before = second.data(), .is_last = true}, got.data(), 301,
                dtype, op);
    EXPECT_EQ(got, want) << name(dtype);
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    expect_same(wide, DType::kF64, op);
    expect_same(halves, DType::kBf16, op);
    expect_same(halves, DType::kF16, op);  // the same bits as other numbers
  }
}

TEST(Reduce, Bool_IsNotDefined) {
  EXPECT_FALSE(can_reduce(DType::kBool));
  EXPECT_TRUE(can_reduce(DType::kF16));
}

}  // namespace
}  // namespace cleave::reduce_test
