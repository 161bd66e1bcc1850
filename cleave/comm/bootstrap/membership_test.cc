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
              HasSubstr("rank 1 (pid 78) runs version 7 of the shared segment, rank 0 version 6"));
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

}  // namespace
}  // namespace cleave::membership_test
