#include "cleave/base/byte_progress.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/captured_stdout.h"

namespace cleave::byte_progress_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// What stdout gets, a terminal of `columns` columns or a pipe (0), while 4 MiB are done in 2 s.
std::string shown(int columns) {
  setenv("TERM", "xterm", 1);
  test::Captured out(columns);
  double now = 100;
  {
    ByteProgress progress(
        {.unit = "copied MiB", .line_every_s = INFINITY, .clock = [&] { return now; }});
    for (uint64_t done = 0; done <= 4; ++done) {
      progress.note(done * kMiB, 4 * kMiB);
      now += 0.5;
    }
  }
  return out.take();
}

TEST(ByteProgress, WorkOfMoreThanASecondOnATerminal_IsShownAndRemoved) {
  const std::string text = shown(100);
  EXPECT_THAT(text, HasSubstr("copied MiB 4/5 ["));
  EXPECT_THAT(text, Not(HasSubstr("copied MiB 1/5")));  // after half a second
  EXPECT_THAT(text, testing::EndsWith("\x1b[K"));
}

TEST(ByteProgress, InAPipe_IsNotShown) {
  EXPECT_EQ(shown(0), "");
}

}  // namespace
}  // namespace cleave::byte_progress_test
