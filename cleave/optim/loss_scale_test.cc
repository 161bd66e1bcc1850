#include "cleave/optim/loss_scale.h"

#include <gtest/gtest.h>

namespace cleave::loss_scale_test {
namespace {

// Oracle: torch.amp.GradScaler's defaults.
TEST(LossScale, OverflowsHalveItAndTwoThousandGoodStepsDoubleIt) {
  LossScale scale(true);
  EXPECT_EQ(scale.value(), 65536);
  scale.update(false);
  scale.update(false);
  EXPECT_EQ(scale.value(), 16384);
  for (int i = 0; i < 1999; ++i) scale.update(true);
  EXPECT_EQ(scale.value(), 16384);
  LossScale again(true);
  again.restore(scale.value(), scale.num_good_steps());
  again.update(true);
  EXPECT_EQ(again.value(), 32768);
  EXPECT_EQ(again.num_good_steps(), 0);
}

TEST(LossScale, Off_StaysOne) {
  LossScale scale(false);
  scale.update(false);
  scale.restore(4, 3);
  for (int i = 0; i < 3000; ++i) scale.update(true);
  EXPECT_EQ(scale.value(), 1);
}

}  // namespace
}  // namespace cleave::loss_scale_test
