#include "cleave/bench/limits.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace cleave::limits_test {
namespace {

TEST(Limits, Products_AreAllThatWereCounted) {
  // 3 x 2 x 5 and, twice, 8 x 4 x 16 multiplications and additions.
  const ProductCounts counts{{{3, 2, 5}, 1}, {{8, 4, 16}, 2}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int ranks : {1, 2}) {
      test::on_ranks(ranks, [&](const Axis& axis) {
        const MachineLimit limit = measure_limit(axis, counts, type);
        EXPECT_EQ(limit.products, 2 * 3 * 2 * 5 + 2 * (2 * 8 * 4 * 16));
        EXPECT_GT(limit.products_s, 0);
        EXPECT_EQ(limit.all_reduce_s > 0, ranks > 1) << "one rank calls no collective";
      });
    }
  }
}

TEST(Limits, RanksWithOtherShapes_DoNotWaitForEachOther) {
  test::on_ranks(2, [](const Axis& axis) {
    ProductCounts counts{{{3, 2, 5}, 1}};
    if (axis.rank() == 1) counts[{4, 4, 4}] = 1;
    EXPECT_EQ(measure_limit(axis, counts, at::kFloat).products, axis.rank() == 1 ? 188 : 60);
  });
}

TEST(Limits, CollectiveCalls_AreThoseOfTheirKind) {
  const Spent spent{.kinds = {},
                    .operations = {{.name = "cleave::comm::all_reduce", .seconds = 4, .calls = 8},
                                   {.name = "aten::mm", .seconds = 2, .calls = 100},
                                   {.name = "cleave::comm::barrier", .seconds = 1, .calls = 3}},
                    .products = {}};
  EXPECT_EQ(collective_calls(spent), 11);
}

TEST(Limits, Percent_IsRounded) {
  EXPECT_EQ(percent(846, 1000), "85 %");
  EXPECT_EQ(percent(1, 3), "33 %");
}

}  // namespace
}  // namespace cleave::limits_test
