#include "cleave/kernels/cpu/gemm.h"

#include <cmath>
#include <functional>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/planner/machine.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/deferred.h"
#include "cleave/torch_internals/op_clock.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

// Oracle: the product in fp64. Each fp32 result is a sum of K products. Whatever its order, its
// error is at most about K roundings of the sum of absolute values.
namespace cleave::gemm_test {
namespace {

using test::leaf_of;
using test::numbers;

/// Selects a library for one test.
class GemmChoice : public ::testing::TestWithParam<Gemm> {
 protected:
  void SetUp() override { set_gemm(GetParam()); }
  void TearDown() override { set_gemm(Gemm::kMkl); }
};
INSTANTIATE_TEST_SUITE_P(Libraries, GemmChoice, ::testing::Values(Gemm::kMkl, Gemm::kOneDnn),
                         [](const auto& choice) { return std::string(name(choice.param)); });

/// Checks got = a b^T within the bound; a [m, k], b [n, k] in fp64.
void expect_product(const Tensor& got, const Tensor& a, const Tensor& b, const char* what) {
  const Tensor bound = a.abs().matmul(b.abs().t()) * (static_cast<double>(a.size(1)) + 2) * 0x1p-24;
  const Tensor off = (got.to(at::kDouble).reshape(bound.sizes()) - a.matmul(b.t())).abs();
  EXPECT_TRUE(off.le(bound).all().item<bool>()) << what << " is off by " << off.max();
}

Tensor fp32_leaf(at::IntArrayRef shape, uint64_t seed) {
  return leaf_of(numbers(shape, seed).to(at::kFloat));
}

Tensor wide(const Tensor& t) {
  return t.detach().to(at::kDouble);
}

TEST_P(GemmChoice, ForwardAndBackward_AreTheProducts) {
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {6, 7, 5},
           {1, 1, 1},
           {64, 33, 17},
           {2, 300, 3},
           {0, 7, 5},
           {150, 20, 9000}}) {  // more outputs than kLongSum, several transposed tiles
    const Tensor x = fp32_leaf({rows, in}, 1), w = fp32_leaf({out, in}, 2), b = fp32_leaf({out}, 3);
    const Tensor g = numbers({rows, out}, 4).to(at::kFloat);
    const Tensor y = affine(x, w, b);
    // The bias is one more product, with a column of ones.
    expect_product(y, at::cat({wide(x), at::ones({rows, 1}, at::kDouble)}, 1),
                   at::cat({wide(w), wide(b).unsqueeze(1)}, 1), "y");
    y.backward(g);
    expect_product(x.grad(), wide(g), wide(w).t(), "dx");
    expect_product(w.grad(), wide(g).t(), wide(x).t(), "dw");
    expect_product(b.grad(), wide(g).t(), at::ones({1, rows}, at::kDouble), "db");
  }
}

// Whether or not the CPU has instructions for the type.
TEST_P(GemmChoice, ForwardAndBackwardIn16Bits_AreTheProductsRoundedOnce) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto expect = [&](const Tensor& got, const Tensor& a, const Tensor& b, const char* what) {
      EXPECT_EQ(got.scalar_type(), type) << what;
      const Tensor want = a.matmul(b.t());
      const Tensor bound =
          want.abs() * (type == at::kHalf ? 0x1p-11 : 0x1p-8) + 0x1p-25 +
          a.abs().matmul(b.abs().t()) * (static_cast<double>(a.size(1)) + 2) * 0x1p-24;
      const Tensor off = (got.to(at::kDouble).reshape(want.sizes()) - want).abs();
      EXPECT_TRUE(off.le(bound).all().item<bool>()) << what << " is off by " << off.max();
    };
    for (const auto& [rows, in, out] :
         std::vector<std::array<int64_t, 3>>{{6, 7, 5}, {64, 33, 17}, {0, 7, 5}, {40, 20, 9000}}) {
      const Tensor x = leaf_of(numbers({rows, in}, 1).to(type));
      const Tensor w = leaf_of(numbers({out, in}, 2).to(type));
      const Tensor b = leaf_of(numbers({out}, 3).to(type)), g = numbers({rows, out}, 4).to(type);
      const Tensor y = affine(x, w, b);
      expect(y, at::cat({wide(x), at::ones({rows, 1}, at::kDouble)}, 1),
             at::cat({wide(w), wide(b).unsqueeze(1)}, 1), "y");
      y.backward(g);
      expect(x.grad(), wide(g), wide(w).t(), "dx");
      expect(w.grad(), wide(g).t(), wide(x).t(), "dw");
      // Rows of w as columns, as a transposed weight is stored.
      const Tensor stored = leaf_of(w.detach().t().contiguous());
      affine(x.detach(), stored.t(), {}).backward(g);
      expect(stored.grad(), wide(x).t(), wide(g).t(), "dw of a transposed weight");
    }
  }
}

// As libtorch's own product does.
TEST_P(GemmChoice, InputChangedInPlaceBeforeBackward_IsRefused) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor w = leaf_of(numbers({5, 7}, 1).to(type)), frozen = w.detach();
    const LowRank branch{.a = leaf_of(numbers({2, 7}, 2).to(type)),
                         .b = leaf_of(numbers({5, 2}, 3).to(type))};
    const std::function<Tensor(const Tensor&)> calls[] = {
        [&](const Tensor& x) { return affine(x, w, {}); },
        [&](const Tensor& x) {
          return affine_frozen(
              x, [&] { return frozen; }, {}, branch);
        }};
    for (const auto& call : calls) {
      const Tensor x = numbers({6, 7}, 4).to(type);
      const Tensor y = call(x);
      x.add_(1);
      EXPECT_THROW(y.sum().backward(), std::exception) << type;
    }
  }
}

TEST_P(GemmChoice, DeferredGradientOfTheWeight_IsComputedByRunAndAddsUp) {
  const Tensor x = fp32_leaf({6, 7}, 1), w = fp32_leaf({5, 7}, 2), b = fp32_leaf({5}, 3);
  const Tensor g = numbers({6, 5}, 4).to(at::kFloat);
  const auto deferred = std::make_shared<DeferredGradients>();
  affine(x, w, b, deferred).backward(g);
  expect_product(x.grad(), wide(g), wide(w).t(), "dx");
  expect_product(b.grad(), wide(g).t(), at::ones({1, 6}, at::kDouble), "db");
  EXPECT_FALSE(w.grad().defined());
  deferred->run();
  expect_product(w.grad(), wide(g).t(), wide(x).t(), "dw");
  const Tensor once = w.grad().clone();
  deferred->run();
  EXPECT_TRUE(at::equal(w.grad(), once)) << "a second run() must do nothing";
  affine(x, w, b, deferred).backward(g);
  deferred->run();
  EXPECT_TRUE(at::equal(w.grad(), once * 2));
}

// The shards of a rank beyond a layer's width: no outputs (column-parallel), no inputs
// (row-parallel).
TEST_P(GemmChoice, DeferredGradientsOfEmptyShards_AreEmptyAndOfTheOthersZero) {
  for (const auto& [in, out] : std::vector<std::array<int64_t, 2>>{{7, 0}, {0, 5}}) {
    for (const bool is_stored_transposed : {false, true}) {
      const Tensor x = fp32_leaf({2, 3, in}, 1);
      const Tensor leaf = is_stored_transposed ? fp32_leaf({in, out}, 2) : fp32_leaf({out, in}, 2);
      const auto deferred = std::make_shared<DeferredGradients>();
      const Tensor y = affine(x, is_stored_transposed ? leaf.t() : leaf, std::nullopt, deferred);
      EXPECT_EQ(y.sizes(), (at::IntArrayRef{2, 3, out}));
      EXPECT_TRUE(at::equal(y, at::zeros_like(y)));
      y.backward(at::ones_like(y));
      deferred->run();
      ASSERT_TRUE(x.grad().defined() && leaf.grad().defined());
      EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x)));
      EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
    }
  }
}

TEST_P(GemmChoice, DeferredGradientOfACast_FlowsToTheLeaf) {
  const Tensor x = leaf_of(numbers({6, 7}, 1).to(at::kBFloat16)), leaf = fp32_leaf({5, 7}, 2);
  const Tensor g = numbers({6, 5}, 4).to(at::kBFloat16);
  affine(x, leaf.to(at::kBFloat16), std::nullopt).backward(g);
  const Tensor want = leaf.grad().clone();
  leaf.mutable_grad().reset();
  const auto deferred = std::make_shared<DeferredGradients>();
  const Tensor cast = leaf.to(at::kBFloat16);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // one cast per step
    affine(x, cast, std::nullopt, deferred).backward(g);
  }
  deferred->run();
  EXPECT_TRUE(at::equal(leaf.grad(), want * 2));
}

TEST_P(GemmChoice, BatchDimsAndNoBias_AreKept) {
  const Tensor x = fp32_leaf({2, 3, 7}, 1), w = fp32_leaf({5, 7}, 2);
  const Tensor y = affine(x, w, std::nullopt);
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{2, 3, 5}));
  expect_product(y, wide(x).view({6, 7}), wide(w), "y");
  const Tensor g = numbers({2, 3, 5}, 4).to(at::kFloat);
  y.backward(g);
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  expect_product(x.grad(), wide(g).view({6, 5}), wide(w).t(), "dx");
  expect_product(w.grad(), wide(g).view({6, 5}).t(), wide(x).view({6, 7}).t(), "dw");
}

// Autograd often passes views: an expanded gradient of sum(), a transposed activation, some columns
// of a wider one.
TEST_P(GemmChoice, ViewsAsInputsAndGradients_AreReadByTheirStrides) {
  const Tensor base = fp32_leaf({2, 7, 3}, 1), w_base = fp32_leaf({7, 10}, 2);
  const Tensor x = base.transpose(1, 2);
  const Tensor w = w_base.narrow(1, 2, 5).t();  // [5, 7], strides (1, 10)
  const Tensor y = affine(x, w, std::nullopt);
  const Tensor flat = wide(x).reshape({6, 7});
  expect_product(y, flat, wide(w), "y");
  y.sum().backward();
  const Tensor ones = at::ones({6, 5}, at::kDouble);
  expect_product(base.grad().transpose(1, 2), ones, wide(w).t(), "dx");
  expect_product(w_base.grad().narrow(1, 2, 5).t(), ones.t(), flat.t(), "dw");
  const Tensor again = affine(x, w, std::nullopt);
  again.narrow(2, 1, 1).sum().backward();  // a gradient that is zero except in one column
  Tensor column = at::zeros({6, 5}, at::kDouble);
  column.select(1, 1).fill_(1);
  expect_product(base.grad().transpose(1, 2), ones + column, wide(w).t(), "dx of both");
}

TEST_P(GemmChoice, ConstantInputs_GetNoGradient) {
  const Tensor x = fp32_leaf({4, 7}, 1), w = fp32_leaf({5, 7}, 2), b = fp32_leaf({5}, 3);
  affine(x.detach(), w, b.detach()).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(b.grad().defined());
  expect_product(w.grad(), at::ones({5, 4}, at::kDouble), wide(x).t(), "dw");
  affine(x, w.detach(), b).sum().backward();
  expect_product(x.grad(), at::ones({4, 5}, at::kDouble), wide(w).t(), "dx");
  EXPECT_FALSE(affine(x.detach(), w.detach(), b.detach()).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(affine(x, w, b).requires_grad());
}

TEST_P(GemmChoice, OtherTypes_KeepTheirPrecision) {
  const Tensor x = numbers({4, 7}, 1), w = numbers({5, 7}, 2);
  EXPECT_LE(test::largest_difference(affine(x, w, std::nullopt), x.matmul(w.t())), 1e-14);
  EXPECT_EQ(affine(x.to(at::kBFloat16), w.to(at::kBFloat16), std::nullopt).scalar_type(),
            at::kBFloat16);
}

/// Checks a bf16 product got = a b^T: the bound of fp32 sums and the rounding of the result, a
/// 256th at most.
void expect_narrow_product(const Tensor& got, const Tensor& a, const Tensor& b, const char* what) {
  const Tensor want = a.matmul(b.t());
  const Tensor bound =
      a.abs().matmul(b.abs().t()) * (static_cast<double>(a.size(1)) + 2) * 0x1p-24 +
      want.abs() * 0x1p-8;
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE((wide(got) - want).abs().le(bound).all().item<bool>()) << what;
}

// With AMX, the gradient of a weight is computed from a transposed copy of one factor.
TEST_P(GemmChoice, ForwardAndBackwardInBf16_AreTheProducts) {
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {6, 7, 5}, {1, 1, 1}, {0, 7, 5}, {130, 48, 70}, {300, 96, 40}}) {
    for (const bool is_stored_transposed : {false, true}) {
      const auto narrow = [](at::IntArrayRef shape, uint64_t seed) {
        return numbers(shape, seed).to(at::kBFloat16);
      };
      const Tensor x = leaf_of(narrow({rows, in}, 1));
      const Tensor leaf =
          leaf_of(narrow({is_stored_transposed ? in : out, is_stored_transposed ? out : in}, 2));
      const Tensor w = is_stored_transposed ? leaf.t() : leaf;
      const Tensor g = narrow({rows, out}, 4);
      const Tensor y = affine(x, w, std::nullopt);
      expect_narrow_product(y, wide(x), wide(w), "y");
      y.backward(g);
      expect_narrow_product(x.grad(), wide(g), wide(w).t(), "dx");
      const Tensor dw = is_stored_transposed ? leaf.grad().t() : leaf.grad();
      expect_narrow_product(dw, wide(g).t(), wide(x).t(), "dw");
      EXPECT_EQ(leaf.grad().strides(), leaf.strides()) << "a gradient in another order is copied";
    }
  }
}

/// A frozen weight with a bias and a branch of low rank, and the gradients of x, a and b.
struct Branched {
  Tensor y, dx, da, db;
};

Branched branched(const std::vector<Tensor>& t, const Tensor& g, double scale) {
  const auto [x, w, bias, a, b] = std::tuple(t[0], t[1], t[2], t[3], t[4]);
  const Tensor narrow = scale * x.matmul(a.t()), of_narrow = scale * g.matmul(b);
  return {.y = x.matmul(w.t()) + bias + narrow.matmul(b.t()),
          .dx = g.matmul(w) + of_narrow.matmul(a),
          .da = of_narrow.t().matmul(x),
          .db = g.t().matmul(narrow)};
}

TEST_P(GemmChoice, FrozenWeightWithABranchOfLowRank_GivesTheSumAndItsGradients) {
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {6, 7, 5}, {64, 33, 17}, {0, 7, 5}, {6, 0, 5}, {6, 7, 0}}) {
    constexpr int64_t kRank = 3;
    constexpr double kScale = 0.5;
    const Tensor x = fp32_leaf({rows, in}, 1), a = fp32_leaf({kRank, in}, 4);
    const Tensor w = fp32_leaf({out, in}, 2).detach(), bias = fp32_leaf({out}, 3).detach();
    const Tensor b = fp32_leaf({out, kRank}, 5), g = numbers({rows, out}, 6).to(at::kFloat);
    const auto weight = [w] { return w; };
    const Tensor y = affine_frozen(x, weight, bias, LowRank{a, b, kScale});
    y.backward(g);
    std::vector<Tensor> exact, absolute;
    for (const Tensor& t : {x, w, bias, a, b}) {
      exact.push_back(wide(t));
      absolute.push_back(wide(t).abs());
    }
    const Branched want = branched(exact, wide(g), kScale);
    const Branched sums = branched(absolute, wide(g).abs(), kScale);
    // Each number is a sum of sums: as many roundings as terms of both.
    const double unit = static_cast<double>(rows + in + out + kRank + 3) * 0x1p-24;
    const auto expect = [&](const Tensor& got, const Tensor& of, const Tensor& sum,
                            const char* what) {
      ASSERT_TRUE(got.defined()) << what;
      EXPECT_TRUE((wide(got) - of).abs().le(sum * unit).all().item<bool>())
          << what << rows << in << out;
    };
    expect(y, want.y, sums.y, "y");
    expect(x.grad(), want.dx, sums.dx, "dx");
    expect(a.grad(), want.da, sums.da, "da");
    expect(b.grad(), want.db, sums.db, "db");
    // The input of the first layer needs no gradient.
    affine_frozen(x.detach(), weight, bias, LowRank{a, b, kScale}).backward(g);
    expect(a.grad(), 2 * want.da, 2 * sums.da, "da of a constant input");
    expect(x.grad(), want.dx, sums.dx, "dx stays");
    const Tensor other = fp32_leaf({rows, in}, 1);
    affine_frozen(other, weight, bias, LowRank{a.detach(), b.detach(), kScale}).backward(g);
    expect(other.grad(), want.dx, sums.dx, "dx of a frozen branch");
  }
}

TEST_P(GemmChoice, Products_AreCountedWithThoseOfTheGradients) {
  const Tensor x = fp32_leaf({2, 5, 3}, 1), weight = fp32_leaf({4, 3}, 2);
  const OpClock clock;
  (void)affine(x, weight, std::nullopt);
  // Forward, input gradient and weight gradient of 10 rows.
  const ProductCounts trained{{{10, 3, 4}, 1}, {{10, 4, 3}, 1}, {{4, 10, 3}, 1}};
  EXPECT_EQ(clock.products(), trained);
  (void)affine_frozen(
      x, [&] { return weight.detach(); }, std::nullopt);
  const ProductCounts with_frozen{{{10, 3, 4}, 2}, {{10, 4, 3}, 2}, {{4, 10, 3}, 1}};
  EXPECT_EQ(clock.products(), with_frozen);
}

TEST_P(GemmChoice, ProductsOfABranch_AreCountedWithThoseOfTheGradients) {
  const Tensor x = fp32_leaf({2, 5, 3}, 1), weight = fp32_leaf({4, 3}, 2);
  const OpClock clock;
  const LowRank branch{fp32_leaf({2, 3}, 3), fp32_leaf({4, 2}, 4), 1};
  (void)affine_frozen(
      x, [&] { return weight.detach(); }, std::nullopt, branch);
  // Forward by a and b, and backward to x, a and b.
  const ProductCounts with_branch{{{10, 3, 4}, 1}, {{10, 4, 3}, 1}, {{2, 3, 10}, 1},
                                  {{10, 2, 4}, 1}, {{2, 4, 10}, 1}, {{2, 10, 3}, 1},
                                  {{2, 10, 4}, 1}, {{10, 2, 3}, 1}};
  EXPECT_EQ(clock.products(), with_branch);
}

// Small whole numbers, whose products and sums are exact.
TEST_P(GemmChoice, MatrixProduct_TakesBothMemoryOrders) {
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const Tensor a = test::whole_numbers({6, 5}, 1), b = test::whole_numbers({5, 7}, 2);
      const auto stored = [](const Tensor& t, bool is_transposed) {
        const Tensor narrow = t.to(at::kFloat);
        return is_transposed ? narrow.t().contiguous().t() : narrow;
      };
      const Tensor got = matrix_product(stored(a, a_transposed), stored(b, b_transposed));
      EXPECT_TRUE(got.to(at::kDouble).equal(a.mm(b))) << a_transposed << b_transposed;
    }
  }
}

TEST(Gemm, Choice_IsKeptAndNamed) {
  EXPECT_EQ(name(Gemm::kMkl), "mkl");
  EXPECT_EQ(name(Gemm::kOneDnn), "onednn");
  set_gemm(Gemm::kOneDnn);
  EXPECT_EQ(gemm(), Gemm::kOneDnn);
  set_gemm(Gemm::kMkl);
  const Gemm faster = faster_gemm();
  EXPECT_TRUE(faster == Gemm::kMkl || faster == Gemm::kOneDnn);
  EXPECT_EQ(gemm(), Gemm::kMkl) << "timing changed the choice";
}

}  // namespace
}  // namespace cleave::gemm_test
