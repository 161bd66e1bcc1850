#include "cleave/comm/bootstrap/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/shm/segment_layout.h"

namespace cleave::membership_test {
namespace {

using testing::HasSubstr;

TEST(Membership, ConflictingRanks_AreRejectedWithTheReason) {
  Membership membership(3);
  EXPECT_EQ(membership.add({kJobMagic, 2, 3, 77}, " at 10.0.0.2"), "");
  EXPECT_EQ(membership.name(2), "pid 77 at 10.0.0.2");
  EXPECT_THAT(membership.add({kJobMagic + 1, 1, 3, 78}),
              HasSubstr("rank 1 (pid 78) runs version 8 of the shared segment, rank 0 version 7"));
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
