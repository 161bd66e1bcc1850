#include "cleave/base/stop.h"

#include <csignal>

#include <gtest/gtest.h>

namespace cleave {
namespace {

void send(int signal) {
  ASSERT_EQ(raise(signal), 0);
}

TEST(StopSignal, NoSignal_NothingPending) {
  const StopSignal stop;
  EXPECT_EQ(StopSignal::pending(), 0);
}

TEST(StopSignal, FirstOfEachKind_OnlyAsks) {
  const StopSignal stop;
  send(SIGINT);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
  send(SIGTERM);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
}

TEST(StopSignal, SameSignalTwice_ExitsWith128PlusSignal) {
  const auto twice = [](int signal) {
    const StopSignal stop;
    send(signal);
    send(signal);
  };
  EXPECT_EXIT(twice(SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(twice(SIGTERM), testing::ExitedWithCode(143), "");
}

TEST(StopSignal, AfterItsEnd_TheDefaultActionIsBack) {
  { const StopSignal stop; }
  EXPECT_EXIT(send(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace cleave
