#include "cleave/comm/shm/call_thread.h"

#include <atomic>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::call_thread_test {
namespace {

TEST(CallThread, Calls_RunInOrder) {
  CallThread thread;
  std::vector<int> order;
  std::vector<std::shared_future<void>> done;
  for (int i = 0; i < 100; ++i) {
    done.push_back(thread.start([&, i] { order.push_back(i); }));
  }
  thread.await_all();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(CallThread, AwaitingCaller_RunsPendingCalls) {
  CallThread thread;
  // The helper thread runs calls while nobody awaits them.
  std::promise<bool> on_helper;
  const auto first = thread.start([&] { on_helper.set_value(CallThread::is_current()); });
  EXPECT_TRUE(on_helper.get_future().get());
  EXPECT_FALSE(CallThread::is_current());
  std::vector<int> order;
  for (int round = 0; round < 200; ++round) {
    order.clear();
    const auto one = thread.start([&] { order.push_back(1); });
    const auto two = thread.start([&] { order.push_back(2); });
    thread.await(two);  // runs both, one or none of them on this thread
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    thread.await(one);
  }
  const auto bad = thread.start([] { throw Error(Code::kTimeout, "late"); });
  EXPECT_THROW(thread.await(bad), Error);
  thread.await(first);
}

TEST(CallThread, ExceptionOfACall_IsInItsFutureOnly) {
  CallThread thread;
  const auto bad = thread.start([] { throw Error(Code::kTimeout, "late"); });
  const auto good = thread.start([] {});
  EXPECT_THROW(bad.get(), Error);
  EXPECT_NO_THROW(good.get());
}

TEST(CallThread, CapturesOfACall_AreFreedWhenItsFutureIsReady) {
  CallThread thread;
  auto held = std::make_shared<int>(1);
  thread.start([held] {}).get();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(CallThread, End_RunsThePendingCalls) {
  CallThread thread;
  std::atomic<int> num_runs = 0;
  for (int i = 0; i < 10; ++i) thread.start([&] { ++num_runs; });
  thread.end();
  EXPECT_EQ(num_runs, 10);
  EXPECT_THROW(thread.start([] {}), Error);
}

}  // namespace
}  // namespace cleave::call_thread_test
