#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "tests/support/captured_stdout.h"

namespace cleave::status_test {
namespace {

TEST(Status, Quiet_LeavesOutStatusAndKeepsResults) {
  ASSERT_FALSE(is_quiet());
  test::Captured out;
  log_status("a", 1);
  set_quiet(true);
  log_status("b");
  log_info("c");
  set_quiet(false);
  log_status("d");
  EXPECT_EQ(out.take(), "a1\nc\nd\n");
}

}  // namespace
}  // namespace cleave::status_test
