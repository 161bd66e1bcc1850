#include "cleave/layout/shard_geometry.h"

#include <gtest/gtest.h>

namespace cleave::shard_geometry_test {
namespace {

using Ranges = std::vector<Range>;

// Oracle: every index of a dim of 12 by itself.
TEST(ShardGeometry, Pieces_MapEachHeldIndexToItsLocalPlace) {
  const Ranges held{{1, 3}, {5, 5}, {6, 10}};
  for (const Ranges& wanted : {Ranges{{0, 12}}, Ranges{{2, 7}}, Ranges{{0, 2}, {3, 6}, {8, 12}},
                               Ranges{{3, 6}}, Ranges{}}) {
    std::vector<std::pair<int64_t, int64_t>> want, got;  // (index in the whole, local index)
    int64_t local = 0;
    for (const Range& h : held) {
      for (int64_t i = h.begin; i < h.end; ++i, ++local) {
        for (const Range& w : wanted) {
          if (w.begin <= i && i < w.end) want.emplace_back(i, local);
        }
      }
    }
    for (const ShardPiece& piece : pieces_of(held, wanted)) {
      EXPECT_GT(piece.whole.size(), 0);
      for (int64_t i = 0; i < piece.whole.size(); ++i) {
        got.emplace_back(piece.whole.begin + i, piece.local + i);
      }
    }
    EXPECT_EQ(got, want);
  }
}

TEST(ShardGeometry, HeldRanges_FollowEachOtherLocally) {
  const auto pieces = pieces_of({{1, 3}, {5, 5}, {6, 10}});
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[1].local, 2);
  EXPECT_EQ(pieces[2].local, 2);
  EXPECT_EQ(pieces[2].whole, (Range{6, 10}));
}

}  // namespace
}  // namespace cleave::shard_geometry_test
