#include "cleave/base/stop.h"

#include <csignal>

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(StopSignal, NoSignal_NothingPending) {
  const StopSignal stop;
  EXPECT_EQ(StopSignal::pending(), 0);
}

TEST(StopSignal, FirstOfEachKind_OnlyAsks) {
  const StopSignal stop;
  raise(SIGINT);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
  raise(SIGTERM);
  EXPECT_EQ(StopSignal::pending(), SIGINT);
}

TEST(StopSignal, SameSignalTwice_ExitsWith128PlusSignal) {
  const auto twice = [](int signal) {
    const StopSignal stop;
    raise(signal);
    raise(signal);
  };
  EXPECT_EXIT(twice(SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(twice(SIGTERM), testing::ExitedWithCode(143), "");
}

TEST(StopSignal, AfterItsEnd_TheDefaultActionIsBack) {
  { const StopSignal stop; }
  EXPECT_EXIT(raise(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace cleave
