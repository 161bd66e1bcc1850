#include <atomic>
#include <chrono>
#include <future>
#include <pthread.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/world.h"
#include "tests/support/level.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The timeout is what a user must hear of, also when its log finds no place.
TEST(RankThreads, TimeoutWhoseLogCannotBeWritten_IsStillATimeout) {
  std::atomic<bool> is_over = false;
  const auto body = [&](World& world) {
    const auto group = world.group({0, 1}, "all");
    if (world.rank() == 1) return is_over.wait(false);  // it never comes
    try {
      group->barrier({.site = "s", .shape = {}});
    } catch (...) {
      is_over = true;
      is_over.notify_all();
      throw;
    }
  };
  const Error error = test::thrown_by(
      [&] { run_ranks(2, body, {.timeout_s = 0.1, .flight_log_folder = "/no/such/folder"}); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("timeout of 0.1 s"), HasSubstr("; /no/such/folder/flight_log.")));
}

TEST(RankThreads, GroupsMadeInAnotherOrder_AreNamed) {
  const Error error = test::thrown_by([] {
    run_ranks(2, [](World& world) {
      const auto group = world.group({0, 1}, world.rank() == 0 ? "tp" : "dp");
      group->barrier({.site = "s", .shape = {}});
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("group 0 of ranks "), HasSubstr("tp on "),
                                  HasSubstr("dp on "), HasSubstr("in the same order")));
}

// Ranks 0 and 1 seem to wait for each other, but another thread of rank 0 ends the wait of rank 1.
TEST(RankThreads, RankOfSeveralThreads_IsNotStoppedByOneThatWaits) {
  run_ranks(2, [](World& world) {
    const auto first = world.group({0, 1}, "first"), second = world.group({0, 1}, "second");
    if (world.rank() == 1) {
      first->barrier({.site = "begin", .shape = {}});
      first->barrier({.site = "end", .shape = {}});
      return second->barrier({.site = "all", .shape = {}});
    }
    std::async(std::launch::async, [&] { first->barrier({.site = "begin", .shape = {}}); }).get();
    const auto other = std::async(std::launch::async, [&] {
      // As long as it takes to be sure of a circle, and some looks more.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      first->barrier({.site = "end", .shape = {}});
    });
    second->barrier({.site = "all", .shape = {}});
  });
}

TEST(RankThreads, ThreadThatGetsNoStack_IsToldAsMemory) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers choose the stacks of threads";
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);  // all that a process can have
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const Error error = test::thrown_by([] { run_ranks(2, [](World&) {}); });
  pthread_setattr_default_np(&before);
  EXPECT_EQ(error.code(), Code::kMemory);
  EXPECT_THAT(error.what(), HasSubstr("rank thread 0 could not start: "));
}

TEST(RankThreads, NoTime_IsRefused) {
  for (const double seconds : {0.0, -1.0}) {
    const Error error = test::thrown_by(
        [&] { run_ranks(2, [](World&) {}, {.timeout_s = seconds, .flight_log_folder = ""}); });
    EXPECT_EQ(error.code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace cleave
