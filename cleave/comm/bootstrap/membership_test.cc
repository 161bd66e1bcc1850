#include "cleave/comm/bootstrap/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave::membership_test {
namespace {

using testing::HasSubstr;

TEST(Membership, ConflictingRanks_AreRejectedWithTheReason) {
  Membership membership(3);
  EXPECT_EQ(membership.add({kJobMagic, 2, 3, 77}, " at 10.0.0.2"), "");
  EXPECT_EQ(membership.name(2), "pid 77 at 10.0.0.2");
  EXPECT_THAT(membership.add({kJobMagic + 1, 1, 3, 78}),
              HasSubstr(str("rank 1 (pid 78) runs version ", kLayoutVersion + 1,
                            " of the shared segment, rank 0 version ", kLayoutVersion)));
  EXPECT_THAT(membership.add({kJobMagic, 1, 4, 78}), HasSubstr("rank 1 (pid 78) has world size 4"));
  for (const int rank : {-1, 3}) {
    EXPECT_THAT(membership.add({kJobMagic, rank, 3, 78}), HasSubstr("is not in [0, 3)"));
  }
  EXPECT_THAT(membership.add({kJobMagic, 2, 3, 78}),
              HasSubstr("rank 2 is claimed by pid 77 at 10.0.0.2 and by pid 78"));
  EXPECT_THAT(membership.add({kJobMagic, 0, 3, 78}), HasSubstr("rank 0 is claimed by pid "));
  EXPECT_FALSE(membership.is_complete());
  EXPECT_EQ(membership.missing(), "rank(s) 1 of 3 did not join; start all ranks");
  EXPECT_EQ(membership.add({kJobMagic, 1, 3, 79}), "");
  EXPECT_TRUE(membership.is_complete());
}

TEST(Membership, RankThatExpectsOtherHosts_IsRejectedByARankZeroThatDoesNot) {
  Membership membership(4);
  EXPECT_THAT(membership.add({kJobMagic, 1, 4, 78, 1, 2}),
              HasSubstr("LOCAL_WORLD_SIZE (or the launcher's variable for it) is 4 on rank 0, as "
                        "WORLD_SIZE is, and 2 on "
                        "rank 1 (pid 78) of the same host"));
}

// The last two: hosts of one name, and two launchers on one host.
TEST(ConflictOfHosts, RanksThatAreAsManyAsTheyExpect_HaveNone) {
  using Places = std::vector<HostPlace>;
  for (const Places& places :
       {Places{{1, 2}, {2, 1}, {1, 2}}, Places{{1, 3}, {1, 2}, {1, 3}, {1, 2}, {1, 3}},
        Places{{1, 2}, {1, 2}, {1, 2}, {1, 2}}}) {
    EXPECT_EQ(conflict_of_hosts(places), "");
  }
}

TEST(ConflictOfHosts, RanksThatWouldWaitForOthers_AreNamedWithTheVariable) {
  EXPECT_EQ(conflict_of_hosts(std::vector<HostPlace>{{7, 2}, {7, 1}, {8, 1}}),
            "LOCAL_WORLD_SIZE (or the launcher's variable for it) is 2 on rank 0, and 1 on rank 1 "
            "of the same host; give "
            "each rank the number of ranks on its host");
  EXPECT_EQ(conflict_of_hosts(std::vector<HostPlace>{{7, 1}, {8, 2}, {9, 1}}),
            "LOCAL_WORLD_SIZE (or the launcher's variable for it) is 2 on rank 1, and only 1 of "
            "the ranks are on its "
            "host; give each rank the number of ranks on its host");
  EXPECT_NE(conflict_of_hosts(std::vector<HostPlace>{{7, 1}, {8, 0}}), "");  // from a hostile rank
}

TEST(Membership, ManyMissingRanks_AreCounted) {
  Membership membership(4096);
  for (int rank = 1; rank < 4096; ++rank) {
    const bool is_missing = rank >= 17 && rank < 247;
    if (!is_missing) membership.add({kJobMagic, rank, 4096, 77});
  }
  EXPECT_EQ(membership.missing(),
            "rank(s) 17, 18, 19, 20, 21, 22, 23, 24, ... (230 in total) of 4096 did not join; "
            "start all ranks");
  EXPECT_EQ(ranks_text({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
            "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16");
}

}  // namespace
}  // namespace cleave::membership_test
