#include "cleave/layout/split.h"

#include <thread>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/memory.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using Ranges = std::vector<Range>;
using Widths = std::vector<int64_t>;

TEST(Split, Balanced_GivesTheFirstRanksOneMore) {
  EXPECT_EQ(Split::balanced(6, 4)->widths(), (Widths{2, 2, 1, 1}));
  EXPECT_EQ(Split::balanced(8, 4)->widths(), (Widths{2, 2, 2, 2}));
  EXPECT_EQ(Split::balanced(2, 4)->widths(), (Widths{1, 1, 0, 0}));
  const Split* heads = Split::balanced(6 * 5, 4, 5);  // six heads of five columns
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
  EXPECT_STREQ(error.what(), "a dim of 10 cannot be cut in units of 4; the unit must divide it");
  EXPECT_EQ(test::thrown_by([] { (void)Split::balanced(10, 2, 0); }).code(), Code::kShape);
}

TEST(Split, EqualOnes_AreOneObjectOnEveryThread) {
  const Split* here = Split::intern(4, {{{0, 2}}, {{2, 4}}}, "");
  const Split* there = nullptr;
  std::thread([&] { there = Split::balanced(4, 2); }).join();
  EXPECT_EQ(here, there);
  EXPECT_NE(here, Split::intern(4, {{{0, 3}}, {{3, 4}}}, ""));
  EXPECT_NE(here, Split::intern(4, {{{0, 2}}, {{2, 4}}}, "heads"));
  EXPECT_EQ(Split::intern(4, {{{0, 2}}, {{2, 4}}}, "heads")->family(), "heads");
}

TEST(Split, SeveralRanges_SayWhereEachElementIs) {
  // Fused q, k, v of four columns each, over two ranks.
  const Split* fused = Split::intern(12, {{{0, 2}, {4, 6}, {8, 10}}, {{2, 4}, {6, 8}, {10, 12}}});
  EXPECT_EQ(fused->widths(), (Widths{6, 6}));
  EXPECT_FALSE(fused->overlaps());
  EXPECT_FALSE(fused->in_order());
  EXPECT_EQ(fused->owned(1), (Ranges{{2, 4}, {6, 8}, {10, 12}}));
  EXPECT_EQ(fused->places(), (Widths{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
}

TEST(Split, Overlap_IsOwnedByTheFirstHolder) {
  // One KV head of three columns on three ranks, then a partial overlap.
  const Split* shared = Split::intern(3, {{{0, 3}}, {{0, 3}}, {{0, 3}}});
  EXPECT_TRUE(shared->overlaps());
  EXPECT_EQ(shared->owned(0), (Ranges{{0, 3}}));
  EXPECT_TRUE(shared->owned(1).empty());
  const Split* half = Split::intern(6, {{{0, 4}}, {{2, 6}}});
  EXPECT_EQ(half->owned(0), (Ranges{{0, 4}}));
  EXPECT_EQ(half->owned(1), (Ranges{{4, 6}}));
  EXPECT_EQ(half->places(), (Widths{0, 1, 2, 3, 6, 7}));
  EXPECT_FALSE(half->in_order());
}

TEST(Split, RangesThatAreNoCut_AreRefused) {
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
  // Refused again when asked again: a failed cut leaves nothing behind.
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

TEST(Split, ManyInOrder_KeepNoTableOfPlaces) {
  constexpr int64_t kWhole = 16 << 10;
  constexpr int64_t kMany = 4000;
  const auto cut_at = [](int64_t at) {
    return Split::intern(kWhole, {{{0, at}}, {{at, kWhole}}}, "of data");
  };
  EXPECT_TRUE(cut_at(1)->places().empty());
  const uint64_t before = test::resident_bytes("VmRSS");
  for (int64_t at = 2; at < 2 + kMany; ++at) (void)cut_at(at);
  const uint64_t growth = test::resident_bytes("VmRSS") - before;
  // Tables of them all would have 4000 x 16 Ki x 8 bytes = 500 MiB; what is kept is less than
  // 2 KiB each. The rest of the bound is for a sanitizer, which keeps up to 256 MiB of freed
  // memory.
  EXPECT_LT(growth, uint64_t{300} << 20);
}

}  // namespace
}  // namespace cleave
