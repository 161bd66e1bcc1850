#include "cleave/layout/split.h"

#include <thread>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/memory.h"
#include "tests/support/thrown.h"

namespace cleave::split_test {
namespace {

using Ranges = std::vector<Range>;
using Widths = std::vector<int64_t>;

TEST(Split, Balanced_GivesTheFirstRanksOneMore) {
  EXPECT_EQ(Split::balanced(6, 4)->widths(), (Widths{2, 2, 1, 1}));
  EXPECT_EQ(Split::balanced(8, 4)->widths(), (Widths{2, 2, 2, 2}));
  EXPECT_EQ(Split::balanced(2, 4)->widths(), (Widths{1, 1, 0, 0}));
  const SplitPtr heads = Split::balanced(6 * 5, 4, 5);  // six heads of five columns
  EXPECT_EQ(heads->widths(), (Widths{10, 10, 5, 5}));
  EXPECT_EQ(heads->ranges(2), (Ranges{{20, 25}}));
  EXPECT_EQ(heads->whole(), 30);
  EXPECT_EQ(heads->num_ranks(), 4);
  EXPECT_TRUE(heads->in_order());
  EXPECT_FALSE(heads->overlaps());
}

TEST(Split, UnitThatDoesNotDivide_IsRefusedWithBothNumbers) {
  const Error error = test::thrown_by([] { (void)Split::balanced(10, 2, 4); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(),
               "a dim of 10 cannot be sharded in units of 4; the unit must divide it");
  EXPECT_EQ(test::thrown_by([] { (void)Split::balanced(10, 2, 0); }).code(), Code::kShape);
}

TEST(Split, EqualOnes_AreOneObjectOnEveryThread) {
  const SplitPtr here = Split::intern(4, {{{0, 2}}, {{2, 4}}}, "");
  SplitPtr there;
  std::thread([&] { there = Split::balanced(4, 2); }).join();
  EXPECT_EQ(here, there);
  EXPECT_NE(here, Split::intern(4, {{{0, 3}}, {{3, 4}}}, ""));
  EXPECT_NE(here, Split::intern(4, {{{0, 2}}, {{2, 4}}}, "heads"));
  EXPECT_EQ(Split::intern(4, {{{0, 2}}, {{2, 4}}}, "heads")->family(), "heads");
}

TEST(Split, SeveralRangesPerRank_HaveWidthsAndPlaces) {
  // Fused q, k, v of four columns each, over two ranks.
  const SplitPtr fused = Split::intern(12, {{{0, 2}, {4, 6}, {8, 10}}, {{2, 4}, {6, 8}, {10, 12}}});
  EXPECT_EQ(fused->widths(), (Widths{6, 6}));
  EXPECT_FALSE(fused->overlaps());
  EXPECT_FALSE(fused->in_order());
  EXPECT_EQ(fused->owned(1), (Ranges{{2, 4}, {6, 8}, {10, 12}}));
  EXPECT_EQ(fused->places(), (Widths{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
}

TEST(Split, Overlap_IsOwnedByTheFirstHolder) {
  // One KV head of three columns on three ranks, then a partial overlap.
  const SplitPtr shared = Split::intern(3, {{{0, 3}}, {{0, 3}}, {{0, 3}}});
  EXPECT_TRUE(shared->overlaps());
  EXPECT_EQ(shared->owned(0), (Ranges{{0, 3}}));
  EXPECT_TRUE(shared->owned(1).empty());
  const SplitPtr half = Split::intern(6, {{{0, 4}}, {{2, 6}}});
  EXPECT_EQ(half->owned(0), (Ranges{{0, 4}}));
  EXPECT_EQ(half->owned(1), (Ranges{{4, 6}}));
  EXPECT_EQ(half->places(), (Widths{0, 1, 2, 3, 6, 7}));
  EXPECT_FALSE(half->in_order());
}

TEST(Split, RangesWithHolesOrOutsideTheDim_AreRefused) {
  const Error hole = test::thrown_by([] { (void)Split::intern(4, {{{0, 1}}, {{2, 4}}}); });
  EXPECT_EQ(hole.code(), Code::kShape);
  EXPECT_STREQ(hole.what(), "element 1 of a dim of 4 is on no rank");
  const Error outside = test::thrown_by([] { (void)Split::intern(4, {{{0, 2}}, {{2, 5}}}); });
  EXPECT_EQ(outside.code(), Code::kShape);
  EXPECT_STREQ(outside.what(), "range [2, 5) is outside a dim of 4");
  EXPECT_EQ(test::thrown_by([] {
              (void)Split::intern(4, {{{0, 4}, {2, 1}}});
            }).code(),
            Code::kShape);
  // Still refused the second time: a failed Split is not interned.
  EXPECT_EQ(test::thrown_by([] {
              (void)Split::intern(4, {{{0, 1}}, {{2, 4}}});
            }).code(),
            Code::kShape);
}

TEST(Split, RangesOfOneRankThatOverlapOrGoBack_AreRefused) {
  for (const auto& ranges : {Ranges{{0, 3}, {2, 4}}, Ranges{{2, 4}, {0, 2}}}) {
    const Error error = test::thrown_by([&] { (void)Split::intern(4, {ranges, {{0, 4}}}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find("ascending"), std::string::npos) << error.what();
  }
}

TEST(Split, InOrder_KeepsNoTableOfPlaces) {
  EXPECT_TRUE(Split::intern(16, {{{0, 3}}, {{3, 16}}})->places().empty());
}

// Splits that depend on data: each step has others.
TEST(Split, ManyThatAreReleased_KeepNoMemory) {
  constexpr int64_t kWhole = 1024;
  constexpr int64_t kMany = 200'000;
  const auto split_at = [](int64_t i) {  // the ranks' shards are not in order
    const int64_t a = 1 + i % 500, b = a + 1 + i / 500;
    return Split::intern(kWhole, {{{a, b}}, {{0, a}, {b, kWhole}}}, "of data");
  };
  const SplitPtr kept = split_at(7);
  const std::weak_ptr<const Split> released = split_at(8);
  EXPECT_TRUE(released.expired());
  const uint64_t before = test::resident_bytes("VmRSS");
  for (int64_t i = 0; i < kMany; ++i) (void)split_at(i);
  const uint64_t growth = test::resident_bytes("VmRSS") - before;
  EXPECT_EQ(kept, split_at(7));
  // If they stayed, their tables alone would take 200,000 x 1024 x 8 bytes = 1.6 GB. The bound is
  // for a sanitizer, which keeps up to 256 MiB of freed memory.
  EXPECT_LT(growth, uint64_t{300} << 20);
}

// Two threads intern and release the same split: the last owner of one may leave while the other
// interns it again.
TEST(Split, ReleasedAndInternedByTwoThreads_IsOneObjectWhileAlive) {
  const auto work = [] {
    for (int i = 0; i < 20'000; ++i) {
      const SplitPtr one = Split::balanced(10, 3, 1, "of two threads");
      const SplitPtr other = Split::balanced(10, 3, 1, "of two threads");
      ASSERT_EQ(one, other);
      ASSERT_EQ(one->widths(), (Widths{4, 3, 3}));
    }
  };
  std::thread beside(work);
  work();
  beside.join();
}

}  // namespace
}  // namespace cleave::split_test
