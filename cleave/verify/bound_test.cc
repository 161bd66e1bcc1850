#include "cleave/verify/bound.h"

#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/optim/optimizer.h"
#include "cleave/verify/numbers.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::verifying::bound_test {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

Quantity value_of(const Tensor& t) {
  return {.local = t};
}

double bound_of(const Bounds& bounds) {
  return bounds.wanted().front().bound.item<double>();
}

TEST(Bounds, OfAValueWithoutResponse_FollowItsSizeAndTheRootOfTheTerms) {
  const Bounds bounds({value_of(at::tensor({3.0, -5.0}))}, at::kDouble,
                      {.terms = 82});  // 82 + 18 = 100
  EXPECT_NEAR(bound_of(bounds), 2 * 8 * 10 * kEpsilon * 5, 1e-18);
}

// fp32 rounds each of the 82 terms and 18 operations. bf16 rounds the results of 18 operations and
// 2 ranks, and sums in fp32. The error of one rank in fp64 is below the tolerance here.
TEST(Bounds, OfAType_FollowItsEpsilon) {
  const std::vector<Quantity> values{value_of(at::tensor({3.0, -5.0}, at::kDouble))};
  const Sums sums{.terms = 82, .ranks = 2};
  const auto bound = [&](at::ScalarType type) { return bound_of(Bounds(values, type, sums)); };
  EXPECT_NEAR(bound(at::kFloat), 8 * 10 * 0x1p-23 * 5, 1e-12);
  const double fp32_sums = std::sqrt(82.0) * 0x1p-23;
  EXPECT_NEAR(bound(at::kBFloat16), 8 * (std::sqrt(20.0) * 0x1p-8 + fp32_sums) * 5, 1e-12);
  EXPECT_NEAR(bound(at::kHalf), 8 * (std::sqrt(20.0) * 0x1p-11 + fp32_sums) * 5, 1e-12);
}

// The sum of 1e6, -1e6 and 1 is 1, but rounding its terms changes it by 1e6 epsilon.
TEST(Bounds, OfASumThatCancels_FollowTheSizeOfItsTerms) {
  const Tensor terms = at::tensor({1e6, -1e6, 1.0});
  Bounds bounds({value_of(terms.sum())}, at::kDouble, {.terms = 3});
  const double before = bound_of(bounds);
  const double size = Bounds::size(at::kDouble);
  for (uint64_t draw = 0; draw < 2; ++draw) {
    bounds.observe({value_of(rounded(terms, size, draw, "terms").sum())});
  }
  EXPECT_GT(bound_of(bounds), 1e5 * before);
  EXPECT_LT(bound_of(bounds), 4e6 * before);
}

// A difference of 100 on one rank cannot come from terms of size 5: one operation has larger ones.
TEST(Bounds, OfAnErrorOfOneRank_IsLambdaTimesIt) {
  const Tensor value = at::tensor({3.0, -5.0}, at::kDouble);
  Bounds bounds({value_of(value)}, at::kFloat, {.terms = 82});
  const double before = bound_of(bounds);
  bounds.observe_one_rank({value_of((value + before / 20).to(at::kFloat))});
  EXPECT_EQ(bound_of(bounds), before);  // 8 / 20 of it
  bounds.observe_one_rank({value_of((value - 100).to(at::kFloat))});
  EXPECT_NEAR(bound_of(bounds), 800, 1e-3);
}

TEST(Bounds, TypeThatCannotHoldTheValueOnOneRank_IsRefused) {
  Bounds bounds({{.of = Of::kGradient, .subject = "a.weight", .local = at::full({2}, 1e5)}},
                at::kHalf, {});
  bounds.observe_one_rank({value_of(at::full({2}, 1e5).to(at::kHalf))});
  const Error error = test::thrown_by([&] { return bounds.wanted(); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(),
               "gradient of a.weight overflows fp16 on one rank; choose another --dtype");
}

// The difference of two values that overflow is NaN.
TEST(Bounds, NaNOfOneRank_IsRefusedWhateverElseIsObserved) {
  const Tensor nan = at::full({2}, std::nan(""), at::kHalf);
  const Tensor ones = at::ones({2}, at::kHalf);
  for (const auto& [first, second] : {std::pair(nan, ones), std::pair(ones, nan)}) {
    Bounds bounds({value_of(at::ones({2}))}, at::kHalf, {});
    bounds.observe_one_rank({value_of(first)});
    bounds.observe_one_rank({value_of(second)});
    EXPECT_EQ(test::thrown_by([&] { return bounds.wanted(); }).code(), Code::kUsage);
    Bounds perturbed({value_of(at::ones({2}))}, at::kHalf, {});
    perturbed.observe({value_of(first)});
    perturbed.observe({value_of(second)});
    EXPECT_EQ(test::thrown_by([&] { return perturbed.wanted(); }).code(), Code::kNumerics);
  }
}

TEST(Bounds, ValueThatIsNotFinite_IsRefusedWithItsName) {
  const Bounds bounds(
      {{.of = Of::kGradient, .subject = "a.weight", .local = at::full({2}, std::nan(""))}},
      at::kDouble, {});
  const Error error = test::thrown_by([&] { return bounds.wanted(); });
  EXPECT_EQ(error.code(), Code::kNumerics);
  EXPECT_NE(std::string(error.what()).find("gradient of a.weight"), std::string::npos);
}

// Oracle: AdamW on gradients with errors up to the bound.
TEST(WantedStep, GradientsWithinTheirBound_GiveWeightsWithinTheirs) {
  const double bound = 1e-7;
  const Tensor g = at::cat({at::zeros({1}, at::kDouble), at::logspace(-12, 1, 200, 10, at::kDouble),
                            -at::logspace(-12, 1, 200, 10, at::kDouble)});
  const auto stepped = [&](const Tensor& gradient) {
    const auto p = std::make_shared<Parameter>(g.sizes().vec(), Init::constant(0));
    p->set_leaf(at::ones_like(g));
    p->leaf().mutable_grad() = gradient.clone();
    Optimizer({p}, {.eps = 1e-8}).step(1e-2);
    return p->leaf().detach().clone();
  };
  const Wanted gradient{.value = g, .bound = at::scalar_tensor(bound, at::kDouble)};
  const Wanted want = wanted_step(value_of(stepped(g)), gradient, 1e-2, 1e-8, at::kDouble);
  for (uint64_t draw = 0; draw < 50; ++draw) {
    const Tensor off = test::numbers(g.sizes(), draw).clamp(-1, 1) * bound;
    const Tensor distance = (stepped(g + off) - want.value).abs();
    EXPECT_TRUE(distance.le(want.bound).all().item<bool>()) << draw;
  }
  // For a gradient far from 0 the bound is much smaller than a step.
  EXPECT_LT(want.bound[200].item<double>(), 1e-9);
}

}  // namespace
}  // namespace cleave::verifying::bound_test
