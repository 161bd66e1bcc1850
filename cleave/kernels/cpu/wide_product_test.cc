#include "cleave/kernels/cpu/wide_product.h"

#include <array>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

// Oracle: the product in fp64. The fp32 sum of K products is off by at most about K roundings of
// the sum of absolute values; rounding to 16 bits adds half a unit in the last place.
namespace cleave::wide_product_test {
namespace {

using test::numbers;

constexpr at::ScalarType kTypes[] = {at::kBFloat16, at::kHalf};

void expect_product(const Tensor& got, const Tensor& want, const Tensor& absolute, double terms) {
  const double half_unit = got.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
  const Tensor bound = want.abs() * half_unit + absolute * (terms + 2) * 0x1p-24 + 0x1p-25;
  EXPECT_TRUE((got.to(at::kDouble) - want).abs().le(bound).all().item<bool>());
}

Tensor wide(const Tensor& t) {
  return t.to(at::kDouble);
}

Tensor product(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.scalar_type(), at::kFloat);
  EXPECT_EQ(b.scalar_type(), at::kFloat);
  return at::linear(a, b);
}

// Sizes of one tile, of several tiles of b, of a, and of more of a than 64 MiB.
TEST(MultiplyInFp32, SumOfProductAndBias_IsRoundedOnce) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
             {3, 5, 7}, {1, 1, 1}, {9, 1300, 500}, {1100, 300, 40}, {1026, 65, 16400}}) {
      const Tensor a = numbers({m, k}, 1).to(type), b = numbers({n, k}, 2).to(type);
      const Tensor bias = numbers({n}, 3).to(type), to = numbers({m, n}, 4).to(type);
      Tensor want = wide(a).matmul(wide(b).t()) + wide(bias);
      Tensor absolute = wide(a).abs().matmul(wide(b).abs().t()) + wide(bias).abs();
      const Tensor result = at::empty({m, n}, type);
      multiply_in_fp32(a, b, bias, result, /*adds=*/false, product);
      expect_product(result, want, absolute, static_cast<double>(k));
      want += wide(to) - wide(bias);
      absolute += wide(to).abs();
      multiply_in_fp32(a, b, std::nullopt, to, /*adds=*/true, product);
      expect_product(to, want, absolute, static_cast<double>(k));
    }
  }
}

TEST(MultiplyInFp32, TransposedViewsAndEmptyMatrices_GiveTheSame) {
  for (const at::ScalarType type : kTypes) {
    const Tensor a = numbers({600, 11}, 1).to(type), b = numbers({600, 700}, 2).to(type);
    const Tensor to = at::full({700, 11}, 7, type);
    multiply_in_fp32(a.t(), b.t(), std::nullopt, to.t(), /*adds=*/false, product);
    expect_product(to.t(), wide(a).t().matmul(wide(b)), wide(a).abs().t().matmul(wide(b).abs()),
                   600);
    const Tensor sum = at::full({2, 3}, 7, type);
    multiply_in_fp32(at::empty({2, 0}, type), at::empty({3, 0}, type), std::nullopt, sum,
                     /*adds=*/false, product);
    EXPECT_TRUE(at::equal(sum, at::zeros({2, 3}, type)));
    multiply_in_fp32(at::empty({0, 4}, type), b.narrow(1, 0, 4), std::nullopt,
                     at::empty({0, 600}, type), /*adds=*/false, product);
  }
}

TEST(MultiplyInFp32, OtherTypes_HaveFastProducts) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kChar}) {
    EXPECT_FALSE(lacks_fast_products(type));
  }
}

}  // namespace
}  // namespace cleave::wide_product_test
