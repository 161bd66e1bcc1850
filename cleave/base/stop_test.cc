#include "cleave/base/stop.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <pty.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cleave::stop_test {
namespace {

void send(int signal) {
  ASSERT_EQ(raise(signal), 0);
}

TEST(StopSignal, NoSignal_NothingPending) {
  const StopSignal stop;
  EXPECT_EQ(StopSignal::pending(), 0);
}

TEST(StopSignal, FirstOfEachKind_OnlySetsTheFlag) {
  const StopSignal stop;
  send(SIGINT);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
  send(SIGTERM);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
}

// As `timeout` sends it: to the program and to its process group.
TEST(StopSignal, SameSignalImmediately_CountsOnce) {
  const StopSignal stop;
  send(SIGTERM);
  send(SIGTERM);
  EXPECT_EQ(StopSignal::pending(), SIGTERM);
}

TEST(StopSignal, SameSignalLater_ExitsWith128PlusSignal) {
  const auto twice = [](int signal) {
    const StopSignal stop;
    send(signal);
    std::this_thread::sleep_for(kSameSignal + std::chrono::milliseconds(20));
    send(signal);
  };
  EXPECT_EXIT(twice(SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(twice(SIGTERM), testing::ExitedWithCode(143), "");
}

/// What a terminal shows, as stderr, when Ctrl-C is pressed.
std::string shown_on_interrupt(const char* answer) {
  int reader = -1, end = -1;
  EXPECT_EQ(openpty(&reader, &end, nullptr, nullptr, nullptr), 0);
  const int saved = dup(STDERR_FILENO);
  dup2(end, STDERR_FILENO);
  {
    const StopSignal stop(answer);
    send(SIGINT);
  }
  dup2(saved, STDERR_FILENO);
  std::array<char, 256> text{};
  const ssize_t length = read(reader, text.data(), text.size());
  for (const int fd : {saved, end, reader}) close(fd);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))};
}

// A conversion has no steps.
TEST(StopSignal, InterruptOnATerminal_IsAnsweredInTheWordsOfTheWork) {
  EXPECT_EQ(shown_on_interrupt(kStopsAfterStep),
            "\r\ncleave: stopping after this step; press Ctrl-C again to stop immediately\r\n");
  EXPECT_EQ(shown_on_interrupt(kStopsSoon),
            "\r\ncleave: stopping; press Ctrl-C again to stop immediately\r\n");
}

// A shell that ends sends its own, and so does the terminal.
TEST(StopSignal, HangupLaterAgain_OnlySetsTheFlag) {
  std::signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
  const StopSignal stop;
  send(SIGHUP);
  std::this_thread::sleep_for(kSameSignal + std::chrono::milliseconds(20));
  send(SIGHUP);
  EXPECT_EQ(StopSignal::pending(), SIGHUP);
}

// Oracle: POSIX's nohup, whose program must not notice the signal.
TEST(StopSignal, IgnoredHangup_StaysIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    send(SIGHUP);
    EXPECT_EQ(StopSignal::pending(), 0);
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

TEST(StopSignal, InsideAnother_KeepsItsSignal) {
  const StopSignal outer;
  send(SIGINT);
  {
    const StopSignal inner;
    EXPECT_EQ(StopSignal::pending(), SIGINT);
  }
  EXPECT_EQ(StopSignal::pending(), SIGINT);
  send(SIGTERM);  // does not end the test
}

TEST(StopSignal, AfterDestruction_TheDefaultActionIsRestored) {
  std::signal(SIGHUP, SIG_DFL);
  { const StopSignal stop; }
  EXPECT_EXIT(send(SIGTERM), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(send(SIGHUP), testing::KilledBySignal(SIGHUP), "");
}

}  // namespace
}  // namespace cleave::stop_test
