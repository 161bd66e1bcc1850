#include "cleave/kernels/cpu/int4.h"

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/cpu/int4_loops.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::int4_test {
namespace {

using test::numbers;

std::vector<Int4Part> whole(int64_t width) {
  return int4_parts({{0, width}});
}

Int4Rows rows_of(const Tensor& weight, bool has_mins) {
  const Tensor groups = in_groups(weight, whole(weight.size(1)));
  return to_int4(groups, int4_bounds(groups), has_mins, "w");
}

/// The elements that the numbers stand for: [out, groups * 32] fp64.
Tensor values_of(const Int4Rows& rows) {
  const Tensor low = rows.codes.bitwise_and(15), high = rows.codes.bitwise_right_shift(4);
  const Tensor q = at::cat({low, high}, 2).to(at::kDouble);
  const Tensor scales = rows.scales.to(at::kDouble).unsqueeze(2);
  const Tensor values =
      rows.mins.defined() ? q * scales - rows.mins.to(at::kDouble).unsqueeze(2) : (q - 8) * scales;
  return values.flatten(1);
}

// Oracle: numpy (tests/golden/make_int4.py).
TEST(Int4, Codes_AreThoseOfNumpy) {
  const test::Tensors golden =
      test::read_tensors(test::source_file("tests/golden/int4.safetensors"));
  for (const std::string name : {"sym", "min"}) {
    const Tensor& weight = golden.at("weight");
    const Int4Rows rows = rows_of(weight, name == "min");
    EXPECT_TRUE(at::equal(rows.codes, golden.at(name + ".codes"))) << name;
    EXPECT_TRUE(at::equal(rows.scales, golden.at(name + ".scales"))) << name;
    if (rows.mins.defined()) {
      EXPECT_TRUE(at::equal(rows.mins, golden.at("min.mins")));
    }
    EXPECT_TRUE(
        at::equal(values_of(rows).narrow(1, 0, weight.size(1)), golden.at(name + ".values")));
  }
}

// x is rounded to multiples of its groups' scales, so each element changes by half a scale at most
// (and a few units in the last place); then fp32 adds the groups' sums.
TEST(Int4Linear, AnySizes_AreWithinTheErrorOfRoundedActivations) {
  for (const bool has_mins : {false, true}) {
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{1, 1}, {32, 33}, {33, 7}, {100, 64}, {300, 66}, {64, 1}}) {
      for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
        const Tensor x = numbers({count, in}, 1).to(at::kFloat);
        const Int4Rows rows = rows_of(numbers({out, in}, 2), has_mins);
        const Tensor bias = numbers({out}, 3).to(at::kFloat);
        const Tensor got = int4_linear(x, to_matrix(rows, whole(in)), bias);
        const Tensor weight = values_of(rows);
        const Tensor groups = in_groups(x, whole(in));
        const Tensor padded = groups.flatten(1).to(at::kDouble);
        const Tensor half_steps =
            (groups.abs().amax(2, true) / 254).expand_as(groups).flatten(1).to(at::kDouble);
        // Terms of a group: numbers times scale, and the offset or minimum.
        const Tensor largest = (rows.scales.abs().to(at::kDouble) * 23).unsqueeze(2);
        const Tensor terms = largest.expand({out, groups.size(1), 32}).flatten(1) + weight.abs();
        const double unit = std::ldexp(static_cast<double>(groups.size(1)) + 8, -24);
        const Tensor bound = half_steps.mul(1.0001).matmul(weight.abs().t()) +
                             (padded.abs() + half_steps).matmul(terms.t()) * unit +
                             bias.abs() * unit;
        const Tensor error = (got.to(at::kDouble) - padded.matmul(weight.t()) - bias).abs();
        EXPECT_TRUE(error.le(bound).all().item<bool>())
            << count << " x " << in << " x " << out << ", minimums " << has_mins;
      }
    }
  }
}

// Whole numbers up to 127 are not rounded if each group has 127, and sums below 2^24 are exact: the
// loops give the same bits.
TEST(Int4Products, AllLoops_GiveTheExactSums) {
  constexpr int64_t kGroups = 3, kOut = 75, kRows = 43;
  const auto generator = at::detail::createCPUGenerator(7);
  Tensor x = at::randint(-127, 128, {kRows, kGroups, kInt4Group}, generator, at::kFloat);
  x.select(2, 5).fill_(127);
  for (const bool has_mins : {false, true}) {
    Int4Rows rows{.codes = at::randint(0, 256, {kOut, kGroups, 16}, generator, at::kByte),
                  .scales = at::randint(-4, 5, {kOut, kGroups}, generator, at::kHalf)};
    if (has_mins) rows.mins = at::randint(0, 9, {kOut, kGroups}, generator, at::kHalf);
    const Int4Matrix matrix = to_matrix(rows, whole(kGroups * kInt4Group));
    const Tensor values = x.to(at::kChar), scales = at::ones({kRows, kGroups}, at::kFloat);
    const Tensor totals = x.sum(2), offsets = totals.mul(-8).to(at::kInt);
    const Tensor want = x.flatten(1).to(at::kDouble).matmul(values_of(rows).t());
    for (const Int4Loops loops :
         {Int4Loops::kPortable, Int4Loops::kAvx2, Int4Loops::kVnni, Int4Loops::kAmx}) {
      if (!has_int4_loops(loops)) continue;
      Tensor got = at::full({kRows * kOut + 1}, 0.5F);
      const Int4Job job{.rows = kRows,
                        .columns = kOut,
                        .groups = kGroups,
                        .has_mins = has_mins,
                        .x = {.values = values.const_data_ptr<int8_t>(),
                              .scales = scales.const_data_ptr<float>(),
                              .offsets = offsets.const_data_ptr<int32_t>(),
                              .totals = totals.const_data_ptr<float>()},
                        .weight = matrix.blocks.const_data_ptr<uint8_t>(),
                        .out = got.mutable_data_ptr<float>()};
      int4_products(job, 0, 3, loops);
      const Tensor products = got.narrow(0, 0, kRows * kOut).view({kRows, kOut});
      EXPECT_TRUE(at::equal(products.to(at::kDouble), want)) << static_cast<int>(loops);
      EXPECT_EQ(got[kRows * kOut].item<float>(), 0.5F);  // nothing is written beyond the end
    }
  }
}

// Continuous batching relies on it, and more rows take other loops.
TEST(Int4Linear, ARowsResult_DoesNotDependOnTheOtherRows) {
  const Tensor all = numbers({67, 300}, 1).to(at::kFloat);
  for (const bool has_mins : {false, true}) {
    const Int4Matrix matrix = to_matrix(rows_of(numbers({75, 300}, 2), has_mins), whole(300));
    const Tensor together = int4_linear(all, matrix, {});
    for (const int64_t rows : {1, 8, 9, 17, 33}) {
      const Tensor alone = int4_linear(all.narrow(0, 67 - rows, rows), matrix, {});
      EXPECT_TRUE(at::equal(alone, together.narrow(0, 67 - rows, rows))) << rows << has_mins;
    }
  }
}

// Inputs 0 to 39, and 40 to 99: the ranks share the second group.
TEST(Int4Linear, PartsOfGroupsWithTheWholeGroupsScales_AddUpToTheWhole) {
  const Tensor x = numbers({3, 100}, 1).to(at::kFloat), weight = numbers({5, 100}, 2);
  const Tensor groups = in_groups(weight, whole(100));
  const Int4Bounds bounds = int4_bounds(groups);
  const Tensor largest = in_groups(x, whole(100)).abs().amax(2);
  for (const bool has_mins : {false, true}) {
    Tensor sum = at::zeros({3, 5});
    for (const Range range : {Range{0, 40}, Range{40, 100}}) {
      const std::vector<Int4Part> parts = int4_parts({range});
      const int64_t first = parts.front().index, count = static_cast<int64_t>(parts.size());
      const Tensor own = weight.narrow(1, range.begin, range.size());
      const Int4Rows rows = to_int4(
          in_groups(own, parts),
          {bounds.low.narrow(1, first, count), bounds.high.narrow(1, first, count)}, has_mins, "w");
      sum += int4_linear(x.narrow(1, range.begin, range.size()), to_matrix(rows, parts), {},
                         largest.narrow(1, first, count).contiguous());
    }
    const Tensor want = int4_linear(x, to_matrix(rows_of(weight, has_mins), whole(100)), {});
    EXPECT_LE(test::largest_difference(sum, want), 1e-4);  // products of about 10 in fp32
  }
}

TEST(Int4Linear, NonFiniteInput_DoesNotBecomeFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Tensor x = numbers({3, 96}, 1).to(at::kFloat);
    x[1][70] = bad;
    for (const bool has_mins : {false, true}) {
      const Tensor y =
          int4_linear(x, to_matrix(rows_of(numbers({5, 96}, 2), has_mins), whole(96)), {});
      EXPECT_FALSE(y[1].isfinite().any().item<bool>()) << bad << ": " << y[1];
      EXPECT_TRUE(y[0].isfinite().all().item<bool>() && y[2].isfinite().all().item<bool>());
    }
  }
}

TEST(Int4, ValuesBeyondFp16Scales_AreRefused) {
  const Tensor weight = at::full({2, 32}, 1e6F);
  for (const bool has_mins : {false, true}) {
    const Error error = test::thrown_by([&] { rows_of(has_mins ? -weight : weight, has_mins); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_NE(std::string(error.what()).find("w has values too large for int4"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleave::int4_test
