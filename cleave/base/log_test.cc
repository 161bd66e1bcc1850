#include "cleave/base/log.h"

#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/captured_stdout.h"

namespace cleave::log_test {
namespace {

using test::Captured;

TEST(Log, WhileALineIsLive_InfoGoesAboveIt) {
  Captured out;
  set_live_line("bar");
  log_info("hello ", 7);
  set_live_line("");
  log_info("after");
  EXPECT_EQ(out.take(), "\r\x1b[Kbar\r\x1b[Khello 7\nbar\r\x1b[Kafter\n");
}

TEST(Log, WhileALineIsLive_ErrorsHideItUntilTheyArePrinted) {
  Captured out;
  testing::internal::CaptureStderr();
  set_live_line("bar");
  log_error("x");
  set_live_line("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "cleave: x\n");
  EXPECT_EQ(out.take(), "\r\x1b[Kbar\r\x1b[Kbar\r\x1b[K");
}

TEST(Log, Errors_AreOneLineOnStderr) {
  testing::internal::CaptureStderr();
  log_error("a\nb=", 1);
  log_warning("c");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "cleave: a b=1\ncleave: warning: c\n");
}

TEST(Log, LinesOfThreads_StayWhole) {
  constexpr int kThreads = 4, kLines = 50;
  const std::string rest(100, 'x');
  Captured out;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&rest, thread] {
      for (int line = 0; line < kLines; ++line) log_info(thread, rest);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int> lines;
  std::istringstream text(out.take());
  for (std::string line; std::getline(text, line);) ++lines[line];
  std::map<std::string, int> expected;
  for (int thread = 0; thread < kThreads; ++thread) {
    expected[std::to_string(thread) + rest] = kLines;
  }
  EXPECT_EQ(lines, expected);
}

}  // namespace
}  // namespace cleave::log_test
