#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/shm/segment_layout.h"
#include "tests/support/level.h"

namespace cleave::large_job_test {
namespace {

using Clock = std::chrono::steady_clock;
using test::milliseconds_since;
using testing::HasSubstr;

constexpr int kNumRanks = kMaxRanks + 8;  // more than one host may have
constexpr int kGroupRanks = 8;

/// Lets this process open a socket for each pair of ranks; false if it may not.
bool raise_descriptor_limit() {
  constexpr rlim_t kNeeded = rlim_t{kNumRanks} * (kNumRanks + 8);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, kNeeded);
  limit.rlim_max = std::max(limit.rlim_max, kNeeded);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// Calls `run` in a thread for each rank of a job, each alone on its host.
void run_ranks(const std::function<void(const Environment&)>& run) {
  const int pid = getpid();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    Environment environment;
    environment.rank = rank;
    environment.world_size = kNumRanks;
    environment.master_addr =
        str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
    environment.master_port = 20500;
    threads.emplace_back([environment, &run] { run(environment); });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Sums over all ranks and over a group of neighbours, and a message to the next rank.
void expect_right_values(World& world) {
  const int rank = world.rank();
  std::vector<int> all(kNumRanks), near(kGroupRanks);
  std::iota(all.begin(), all.end(), 0);
  std::iota(near.begin(), near.end(), rank / kGroupRanks * kGroupRanks);
  const auto sum_over = [&](const std::vector<int>& ranks, const char* name) {
    const auto own = static_cast<float>(rank);
    float sum = 0;
    world.group(ranks, name)
        ->all_reduce(&own, &sum, 1, DType::kF32, ReduceOp::kSum, {.site = name, .shape = {}});
    return sum;
  };
  EXPECT_EQ(sum_over(all, "all"), kNumRanks * (kNumRanks - 1) / 2);
  EXPECT_EQ(sum_over(near, "near"), kGroupRanks * near[0] + kGroupRanks * (kGroupRanks - 1) / 2);
  const auto ring = world.group(all, "ring");
  int64_t own = rank, got = -1;
  ring->send(&own, 1, DType::kI64, (rank + 1) % kNumRanks, {.site = "ring", .shape = {}});
  ring->recv(&got, 1, DType::kI64, (rank + kNumRanks - 1) % kNumRanks,
             {.site = "ring", .shape = {}});
  EXPECT_EQ(got, (rank + kNumRanks - 1) % kNumRanks);
}

TEST(LargeJobFull, MoreRanksThanOneHostHas_SumSendAndNameTheOneThatFails) {
  if (!raise_descriptor_limit()) {
    GTEST_SKIP() << "this process may not open a socket for each pair of " << kNumRanks << " ranks";
  }
  constexpr int kFailing = 17;
  std::atomic<int> num_reached = 0;
  std::atomic<int64_t> failed_at = 0, last_reached = 0;
  const auto begin = Clock::now();
  const auto now = [&] { return static_cast<int64_t>(milliseconds_since(begin)); };
  const auto keep_latest = [](std::atomic<int64_t>& latest, int64_t ms) {
    int64_t known = latest.load();
    while (known < ms && !latest.compare_exchange_weak(known, ms)) continue;
  };
  std::atomic<int64_t> connected = 0, computed = 0;
  run_ranks([&](const Environment& environment) {
    try {
      const auto world = connect(environment, {.timeout_s = 300, .flight_log_folder = ""});
      keep_latest(connected, now());
      expect_right_values(*world);
      keep_latest(computed, now());
      std::vector<int> all(kNumRanks);
      std::iota(all.begin(), all.end(), 0);
      const auto end = world->group(all, "end");
      end->barrier({.site = "end", .shape = {}});
      if (environment.rank == kFailing) {
        failed_at = now();
        world->abort(Error(Code::kIo, "rank 17 has no disk"));
        return;
      }
      end->barrier({.site = "end", .shape = {}});
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 17 has no disk"));
      ++num_reached;
      keep_latest(last_reached, now());
    }
  });
  EXPECT_EQ(num_reached, kNumRanks - 1);
  test::note_measured(kNumRanks, " ranks connected after ", connected.load(),
                      " ms, had their sums ", computed - connected,
                      " ms later; the failure reached all in ", last_reached - failed_at,
                      " ms; peak memory of all ranks ", peak_rss_bytes(), " bytes");
}

TEST(LargeJob, MoreRanksThanTheLimit_IsRefusedBeforeAnyConnects) {
  Environment environment;
  environment.rank = 1;
  environment.world_size = kMaxJobRanks + 1;
  environment.master_addr = "127.0.0.1";
  environment.master_port = 20500;
  try {
    connect(environment, {});
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("WORLD_SIZE=4097; choose at most 4096 ranks"));
  }
}

}  // namespace
}  // namespace cleave::large_job_test
