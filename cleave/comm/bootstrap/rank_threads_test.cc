#include <atomic>
#include <chrono>
#include <future>
#include <pthread.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"
#include "tests/support/program.h"
#include "tests/support/thrown.h"

namespace cleave::rank_threads_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The user must see the timeout even if the flight log cannot be written.
TEST(RankThreads, TimeoutWhoseLogCannotBeWritten_IsStillATimeout) {
  std::atomic<bool> is_over = false;
  const auto body = [&](World& world) {
    const auto group = world.group({0, 1}, "all");
    if (world.rank() == 1) return is_over.wait(false);  // never calls the barrier
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

/// Rank 1 waits forever. Rank 0 waits for rank 1, or fails if `fails`.
int run_with_stuck_rank(bool fails) {
  const auto body = [fails](World& world) {
    const auto group = world.group({0, 1}, "all");
    group->barrier({.site = "begin", .shape = {}});
    if (world.rank() == 1) std::promise<void>().get_future().wait();
    if (fails) throw Error(Code::kNumerics, "gradient norm is nan");
    group->barrier({.site = "end", .shape = {}});
  };
  run_ranks(2, body, {.timeout_s = 0.3, .flight_log_folder = ""});
  return 0;
}

const ProcessRole kDeadlock("deadlock", [] { return run_with_stuck_rank(false); });
const ProcessRole kFailure("failure", [] { return run_with_stuck_rank(true); });

// Row R5, for rank threads: a thread cannot end another thread.
TEST(RankThreads, RankThatNeverStops_EndsTheProcessWithTheCause) {
  const auto run = [](const std::string& role) {
    // The test leaves threads that nobody joins.
    return test::run_program(
        {own_program()},
        {.environment = {"CLEAVE_TEST_ROLE=" + role, "TSAN_OPTIONS=report_thread_leaks=0"}});
  };
  const std::string end = "\ncleave: rank 1 does not stop, so the process ends\n";
  const test::RunResult waits = run("deadlock");
  EXPECT_EQ(waits.exit_code, static_cast<int>(Code::kTimeout));
  EXPECT_EQ(waits.err,
            "cleave: timeout of 0.3 s: rank 0 waits in barrier 2 on axis all at end for rank 1; "
            "rank 1 is after barrier 1 on axis all at begin" +
                end);
  const test::RunResult fails = run("failure");
  EXPECT_EQ(fails.exit_code, static_cast<int>(Code::kNumerics));
  EXPECT_EQ(fails.err, "cleave: gradient norm is nan" + end);
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

// Ranks 0 and 1 seem to deadlock, but another thread of rank 0 ends the wait of rank 1.
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
      // Longer than the watchdog needs to report a deadlock cycle.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      first->barrier({.site = "end", .shape = {}});
    });
    second->barrier({.site = "all", .shape = {}});
  });
}

TEST(RankThreads, ThreadThatGetsNoStack_IsReportedAsMemory) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers choose the stacks of threads";
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);  // the whole address space
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
}  // namespace cleave::rank_threads_test
