#include "cleave/base/median.h"

#include <gtest/gtest.h>

namespace cleave::median_test {
namespace {

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace cleave::median_test
