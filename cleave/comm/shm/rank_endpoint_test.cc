#include "cleave/comm/shm/rank_endpoint.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/small_disk.h"

namespace cleave::rank_endpoint_test {
namespace {

constexpr int kNoProcess = (1 << 22) + 1;  // above Linux's largest number of a process

TEST(ProcessState, ProcessesThatRunAndThatDoNot_DifferAlsoWithoutProc) {
  EXPECT_EQ(process_state(kNoProcess), '\0');
  EXPECT_NE(process_state(getpid()), '\0');
  char own = 0, none = 0;
  const bool is_hidden = test::on_small_disk("/proc", 4096, [&] {
    own = process_state(getpid());
    none = process_state(kNoProcess);
  });
  if (!is_hidden) GTEST_SKIP() << "needs the right to mount a file system";
  EXPECT_EQ(own, '?');
  EXPECT_EQ(none, '\0');
}

}  // namespace
}  // namespace cleave::rank_endpoint_test
