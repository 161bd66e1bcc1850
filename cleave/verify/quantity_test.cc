#include "cleave/verify/quantity.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::verifying::quantity_test {
namespace {

using test::on_ranks;
using test::thrown_by;
using test::whole_numbers;

Wanted wanted(const Tensor& value, double bound = 0) {
  return {.value = value, .bound = at::scalar_tensor(bound, at::kDouble)};
}

std::vector<Measured> measured(const Quantity& q, const Wanted& want) {
  return worst({measure(q, want, "part")}, q.axis);
}

/// Shards [2, 9] along dim 1 into several ranges per rank, like a fused matrix; ranks 0 and 1 share
/// one.
SplitPtr runs() {
  return Split::intern(9, {{{0, 2}, {5, 6}}, {{2, 3}, {5, 6}, {8, 9}}, {{3, 5}, {6, 8}}});
}

Tensor slice_of(const Tensor& whole, const Axis& axis) {
  return DTensor::distribute(whole, axis, Shard{1, runs()}).local().clone();
}

TEST(Measure, ElementOfOneRanksSlice_HasItsIndexInTheWhole) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor whole = whole_numbers({2, 9}, 1);
    Tensor local = slice_of(whole, axis);
    if (axis.rank() == 2) local[1][2] += 3;  // column 6 of the whole
    if (axis.rank() == 0) local[0][0] += 1;
    const Quantity q{.local = local, .axis = axis, .placement = Shard{1, runs()}};
    const Measured m = measured(q, wanted(whole, 0.5)).front();
    EXPECT_EQ(m.at, 9 + 6);
    EXPECT_EQ(m.distance, 3);
    EXPECT_EQ(m.bound, 0.5);
    EXPECT_EQ(m.split - m.whole, 3);
    EXPECT_EQ(m.whole, whole[1][6].item<double>());
  });
}

TEST(Measure, BoundOfEachElement_DecidesWhichIsWorst) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor whole = whole_numbers({2, 9}, 1);
    Tensor local = slice_of(whole, axis);
    if (axis.rank() == 2) local[1][2] += 3;
    if (axis.rank() == 0) local[0][0] += 1;
    Wanted want = wanted(whole);
    want.bound = at::full({2, 9}, 100.0, at::kDouble);
    want.bound[0][0] = 0.1;
    const Quantity q{.local = local, .axis = axis, .placement = Shard{1, runs()}};
    EXPECT_EQ(measured(q, want).front().at, 0);
  });
}

TEST(Measure, PartialSums_AreAddedFirst) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor whole = whole_numbers({4, 2}, 1);
    const Tensor part = axis.rank() == 0 ? whole - 3 : at::full_like(whole, 1.5);
    const Quantity partial{.local = part, .axis = axis, .placement = Partial{}};
    EXPECT_EQ(measured(partial, wanted(whole)).front().distance, 0);
    const Quantity fanout{.local = part, .axis = axis, .placement = Fanout{}, .is_gradient = true};
    EXPECT_EQ(measured(fanout, wanted(whole)).front().distance, 0);
    // As a Fanout value, or as a gradient of Partial, the same numbers are not summed.
    const Quantity as_value{.local = part, .axis = axis, .placement = Fanout{}};
    EXPECT_GT(measured(as_value, wanted(whole)).front().distance, 0);
    const Quantity as_gradient{
        .local = part, .axis = axis, .placement = Partial{}, .is_gradient = true};
    EXPECT_GT(measured(as_gradient, wanted(whole)).front().distance, 0);
  });
}

TEST(Measure, GradientOfSharedElements_IsTheSumOverTheirHolders) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor whole = whole_numbers({2, 9}, 1);
    Tensor local = slice_of(whole, axis);
    // Column 5 is on ranks 0 and 1.
    if (axis.rank() == 0) local.select(1, 2).mul_(0.25);
    if (axis.rank() == 1) local.select(1, 1).mul_(0.75);
    Quantity q{.local = local, .axis = axis, .placement = Shard{1, runs()}, .is_gradient = true};
    EXPECT_EQ(measured(q, wanted(whole)).front().distance, 0);
    q.is_gradient = false;
    EXPECT_EQ(measured(q, wanted(whole)).front().at % 9, 5);
  });
}

TEST(Measure, NaN_IsInfinitelyFar) {
  const Tensor whole = at::ones({2, 2}, at::kDouble);
  Tensor got = whole.clone();
  got[1][0] = std::nan("");
  const Measured m = measured({.local = got}, wanted(whole, 1)).front();
  EXPECT_EQ(m.distance, std::numeric_limits<double>::infinity());
  EXPECT_EQ(m.at, 2);
}

TEST(Measure, RowsOfADataParallelRank_AreComparedWithTheirRows) {
  const Tensor whole = whole_numbers({4, 3}, 1);
  Quantity q{.local = whole.narrow(0, 2, 2).clone(), .rows = Range{2, 4}};
  q.local[1][1] += 2;
  EXPECT_EQ(measured(q, wanted(whole)).front().at, 3 * 3 + 1);
}

TEST(Measure, RankWithoutElements_IsIgnored) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor whole = whole_numbers({2}, 1);
    const SplitPtr split = Split::balanced(2, 3);  // rank 2 has none
    Tensor local = DTensor::distribute(whole, axis, Shard{0, split}).local().clone();
    if (axis.rank() == 1) local += 1;
    const Quantity q{.local = local, .axis = axis, .placement = Shard{0, split}};
    EXPECT_EQ(measured(q, wanted(whole)).front().at, 1);
  });
}

// An expert of another rank has no memory here. A weight that backward does not reach has.
TEST(GradientOf, ParameterWithoutAGradient_IsZeroIfItHasMemory) {
  Parameter parameter({2, 3}, Init::constant(0));
  EXPECT_FALSE(gradient_of(parameter).defined());
  parameter.set_leaf(at::ones({2, 3}, at::kDouble));
  EXPECT_TRUE(at::equal(gradient_of(parameter), at::zeros({2, 3}, at::kDouble)));
  parameter.leaf().mutable_grad() = at::ones({2, 3}, at::kDouble);
  EXPECT_TRUE(at::equal(gradient_of(parameter), at::ones({2, 3}, at::kDouble)));
}

TEST(Measure, AnotherShape_IsAnErrorWithTheName) {
  const Quantity q{.local = at::zeros({3, 2})};
  const Error error = thrown_by([&] { measure(q, wanted(at::zeros({2, 3})), "block.up"); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_NE(std::string(error.what()).find("block.up: output has shape [3, 2]"), std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace cleave::verifying::quantity_test
