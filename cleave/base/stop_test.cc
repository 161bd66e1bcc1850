#include "cleave/base/stop.h"

#include <csignal>
#include <thread>

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

TEST(StopSignal, AfterDestruction_TheDefaultActionIsRestored) {
  { const StopSignal stop; }
  EXPECT_EXIT(send(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace cleave::stop_test
