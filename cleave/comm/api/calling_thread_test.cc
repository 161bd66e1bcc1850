#include "cleave/comm/api/calling_thread.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "tests/support/level.h"
#include "tests/support/thrown.h"

namespace cleave::calling_thread_test {
namespace {

// As libtorch runs backward of device tensors: another thread communicates while the rank's own
// waits for it. The ranks must still be known to wait for each other, long before the timeout.
TEST(ForBlockedThread, RankWhoseThreadsTakeTurns_IsPartOfADeadlockCycle) {
  const auto begin = std::chrono::steady_clock::now();
  const Error error = test::thrown_by([] {
    run_ranks(
        2,
        [](World& world) {
          const auto first = world.group({0, 1}, "first"), second = world.group({0, 1}, "second");
          first->barrier({.site = "forward", .shape = {}});
          std::thread([&] {
            const ForBlockedThread scope(true);
            first->barrier({.site = "backward", .shape = {}});
          }).join();
          (world.rank() == 0 ? first : second)->barrier({.site = "end", .shape = {}});
        },
        RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  });
  EXPECT_EQ(error.code(), Code::kDesync) << error.what();
  EXPECT_NE(std::string(error.what()).find("ranks wait for each other"), std::string::npos);
  EXPECT_LT(test::milliseconds_since(begin), 5000);
}

TEST(ForBlockedThread, Scope_EndsAndDoesNotSpreadToThreads) {
  EXPECT_FALSE(ForBlockedThread::is_active());
  {
    const ForBlockedThread scope(true);
    const ForBlockedThread inner(false);
    EXPECT_TRUE(ForBlockedThread::is_active());
    std::thread([] { EXPECT_FALSE(ForBlockedThread::is_active()); }).join();
  }
  EXPECT_FALSE(ForBlockedThread::is_active());
}

}  // namespace
}  // namespace cleave::calling_thread_test
