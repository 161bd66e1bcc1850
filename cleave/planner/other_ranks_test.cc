#include "cleave/planner/other_ranks.h"

#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::other_ranks_test {
namespace {

RankUse use_of(int tp, int pp, int dp, int64_t batch, int64_t micro = 0) {
  RankUse use{.layout = {}, .batch_size = batch, .micro_batch_size = micro};
  use.layout.tp = tp;
  use.layout.pp = pp;
  use.layout.dp = dp;
  return use;
}

struct Case {
  const char* what;
  RankUse before;
  std::vector<int> hosts;
  int tp, pp, dp;
  int64_t micro;
};

// Oracle: worked out by hand.
TEST(OtherRanks, EachCase_HasTheLayoutWorkedOutByHand) {
  const std::vector<Case> cases{
      {"a host of three is lost: dp", use_of(2, 1, 3, 12), {2, 2}, 2, 1, 2, 4},
      {"two of three hosts are lost", use_of(2, 1, 3, 12), {2}, 2, 1, 1, 4},
      {"the batch does not divide", use_of(2, 1, 4, 10), {2, 2, 2}, 2, 1, 3, 3},
      {"a given micro-batch stays", use_of(1, 1, 4, 16, 2), {1, 1, 1}, 1, 1, 3, 2},
      {"dp before pp", use_of(2, 2, 2, 32), {2, 2}, 2, 2, 1, 2},
      {"pp where dp is used up", use_of(2, 4, 1, 32), {2, 2}, 2, 2, 1, 2},
      {"pp only becomes a divisor", use_of(2, 4, 1, 32), {2, 2, 2}, 2, 1, 3, 2},
      {"tp does not cross hosts", use_of(2, 1, 3, 12), {1, 1, 2}, 1, 1, 4, 3},
      {"tp becomes a divisor", use_of(6, 1, 2, 8), {4}, 2, 1, 2, 4},
      {"tp of one host may stay", use_of(4, 1, 2, 8), {4}, 4, 1, 1, 4},
      {"hosts come back: the micro-batch shrinks", use_of(2, 1, 1, 6), {2, 2}, 2, 1, 2, 3},
      {"as many ranks: nothing changes", use_of(2, 2, 2, 2), {2, 2, 2, 2}, 2, 2, 2, 0},
      {"shares of one and two sequences", use_of(1, 2, 4, 4), {3, 3}, 1, 2, 3, 1}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const RankUse after = on_other_ranks(c.before, c.hosts);
    EXPECT_EQ(after.layout.tp, c.tp);
    EXPECT_EQ(after.layout.pp, c.pp);
    EXPECT_EQ(after.layout.dp, c.dp);
    EXPECT_EQ(after.micro_batch_size, c.micro);
    EXPECT_EQ(after.batch_size, c.before.batch_size);
  }
}

TEST(OtherRanks, ExpertsAndStages_Follow) {
  RankUse before = use_of(1, 2, 4, 16);
  before.layout.ep = 4;
  before.layout.virtual_pipeline = 2;
  before.layout.schedule_pp = "interleaved";
  const RankUse two = on_other_ranks(before, std::vector{2, 2});
  EXPECT_EQ(two.layout.pp, 2);
  EXPECT_EQ(two.layout.ep, 2);
  EXPECT_EQ(two.layout.virtual_pipeline, 2);
  EXPECT_EQ(two.layout.schedule_pp, "interleaved");
  const RankUse odd = on_other_ranks(before, std::vector{3});
  EXPECT_EQ(odd.layout.pp, 1);
  EXPECT_EQ(odd.layout.dp, 3);
  EXPECT_EQ(odd.layout.ep, 1);
  EXPECT_EQ(odd.layout.virtual_pipeline, 1);
  EXPECT_EQ(odd.layout.schedule_pp, "");
}

TEST(OtherRanks, MoreRanksThanSequences_AreRefused) {
  try {
    (void)on_other_ranks(use_of(2, 1, 2, 2), std::vector{3});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_STREQ(error.what(),
                 "a run of tp=2 x pp=1 x dp=2 cannot continue on 3 ranks: the batch of 2 sequences "
                 "is too small to give each data-parallel rank one; start it on fewer ranks");
  }
}

TEST(OtherRanks, Change_IsOneLine) {
  const RankUse before = use_of(2, 1, 3, 12);
  EXPECT_EQ(describe_change(before, on_other_ranks(before, std::vector{2, 2})),
            "4 ranks instead of 6: dp=3 -> 2, tp=2, pp=1; the batch stays 12, in 2 micro-batches "
            "of up to 4 per rank");
}

}  // namespace
}  // namespace cleave::other_ranks_test
