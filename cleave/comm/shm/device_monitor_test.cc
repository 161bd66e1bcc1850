#include "cleave/comm/shm/device_monitor.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <spawn.h>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/shm/shm_world.h"
#include "tests/support/thrown.h"

namespace cleave::device_monitor_test {
namespace {

using testing::HasSubstr;

/// A group of which every collective runs on the device until it is aborted, as one of NCCL does
/// after a peer has died.
class StuckGroup : public DeviceGroup {
 public:
  DeviceWorkPtr all_reduce(const void*, void*, int64_t, DType, ReduceOp) override {
    return nullptr;
  }
  DeviceWorkPtr all_gather(const void*, void*, int64_t, std::span<const int64_t>, DType) override {
    return nullptr;
  }
  DeviceWorkPtr reduce_scatter(const void*, void*, int64_t, std::span<const int64_t>,
                               DType) override {
    return nullptr;
  }
  DeviceWorkPtr broadcast(void*, int64_t, DType, int) override { return nullptr; }
  DeviceWorkPtr all_to_all(const void*, std::span<const int64_t>, void*, std::span<const int64_t>,
                           DType) override {
    return nullptr;
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] std::string failure() override { return fails ? "axis tp: NCCL failed" : ""; }

  /// Waits for the device, as cudaStreamSynchronize() does. False if nobody aborts.
  [[nodiscard]] bool synchronize() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return is_aborted_; });
  }

  std::atomic<bool> fails = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_aborted_ = false;
};

/// All host memory is its memory, except during connect().
class StuckDevice : public Device {
 public:
  [[nodiscard]] bool holds(const void* data) const override { return data != nullptr; }
  void copy(void*, const void*, size_t) override {}
  std::unique_ptr<DeviceGroup> connect(Group& /*group*/) override {
    auto made = std::make_unique<StuckGroup>();
    group = made.get();
    return made;
  }
  StuckGroup* group = nullptr;
};

TEST(DeviceMonitor, FailureOfAPeer_EndsTheWaitForTheDevice) {
  std::atomic<bool> is_queued = false;
  const Error cause = test::thrown_by([&] {
    run_ranks(2, [&](World& world) {
      const auto device = std::make_shared<StuckDevice>();
      world.use_device(device);
      const auto group = world.group({0, 1}, "tp");
      float x = 1;
      group->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, {.site = "sum", .shape = {}});
      if (world.rank() == 0) {
        is_queued.wait(false);
        throw Error(Code::kNumerics, "loss is nan");
      }
      is_queued = true;
      is_queued.notify_all();
      EXPECT_TRUE(device->group->synchronize());
      const Error error = test::thrown_by([&] {
        group->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, {.site = "next", .shape = {}});
      });
      EXPECT_EQ(error.code(), Code::kPeer);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 failed: loss is nan"));
      throw Error(error);
    });
  });
  EXPECT_EQ(cause.code(), Code::kNumerics) << cause.what();
}

/// The id of a process that has ended.
pid_t ended_process() {
  pid_t pid = 0;
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  EXPECT_EQ(posix_spawnp(&pid, name, nullptr, nullptr, arguments, nullptr), 0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  return pid;
}

// No rank of the job waits in a collective, so only the monitor can find out.
TEST(DeviceMonitor, DeadPeer_IsTheFailureOfTheJob) {
  const std::shared_ptr<SharedSegment> segment = SharedSegment::create_shared(2);
  const auto endpoint = std::make_shared<RankEndpoint>(segment, 0, RankOptions{});
  const pid_t pid = ended_process();
  segment->rank(1).pid.store(pid);
  segment->rank(1).state.store(RankState::kJoined);
  StuckGroup group;
  DeviceMonitor monitor(endpoint, nullptr);
  monitor.add(group);
  EXPECT_TRUE(group.synchronize());
  ASSERT_TRUE(segment->aborted().has_value());
  EXPECT_EQ(segment->aborted()->code, Code::kPeer);
  EXPECT_EQ(segment->aborted()->rank, 1);
  EXPECT_THAT(segment->aborted()->text, HasSubstr("rank 1 (pid " + std::to_string(pid) + ") died"));
  monitor.remove(group);
}

TEST(DeviceMonitor, FailureOfTheLibrary_IsTheFailureOfTheJob) {
  const std::shared_ptr<SharedSegment> segment = SharedSegment::create_private(1);
  const auto endpoint = std::make_shared<RankEndpoint>(segment, 0, RankOptions{});
  StuckGroup group;
  DeviceMonitor monitor(endpoint, nullptr);
  monitor.add(group);
  EXPECT_FALSE(segment->is_aborted());
  group.fails = true;
  EXPECT_TRUE(group.synchronize());
  ASSERT_TRUE(segment->aborted().has_value());
  EXPECT_EQ(segment->aborted()->code, Code::kPeer);
  EXPECT_EQ(segment->aborted()->text, "axis tp: NCCL failed");
  monitor.remove(group);
}

}  // namespace
}  // namespace cleave::device_monitor_test
