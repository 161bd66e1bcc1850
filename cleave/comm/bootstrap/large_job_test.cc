#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <list>
#include <numeric>
#include <poll.h>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/launch/child_process.h"
#include "cleave/comm/shm/segment_layout.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"

namespace cleave::large_job_test {
namespace {

using testing::HasSubstr;

constexpr int kNumRanks = kMaxRanks + 8;  // more than one host may have
constexpr int kGroupRanks = 8;
constexpr int kRanksPerProcess = 26;  // each opens a socket for every other rank
constexpr int kFailing = 17;
static_assert(kNumRanks % kGroupRanks == 0 && kNumRanks % kRanksPerProcess == 0);

/// Milliseconds on a clock that all processes share.
int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// An environment variable that the test sets for its processes.
std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  CLEAVE_CHECK(value != nullptr, Code::kUsage, name, " is not set");
  return value;
}

void keep_latest(std::atomic<int64_t>& latest, int64_t ms) {
  int64_t known = latest.load();
  while (known < ms && !latest.compare_exchange_weak(known, ms)) continue;
}

/// When the last rank of a process had passed each phase, and when the failing rank failed.
struct Times {
  std::atomic<int64_t> connected = 0, computed = 0, failed = 0, reached = 0;
};

/// Sums over all ranks and over a group of neighbours, and a message to the next rank.
bool has_right_values(World& world, const std::vector<int>& all) {
  const int rank = world.rank();
  std::vector<int> near(kGroupRanks);
  std::iota(near.begin(), near.end(), rank / kGroupRanks * kGroupRanks);
  const auto sum_over = [&](const std::vector<int>& ranks, const char* name) {
    const int64_t own = rank;
    int64_t sum = 0;
    world.group(ranks, name)
        ->all_reduce(&own, &sum, 1, DType::kI64, ReduceOp::kSum, {.site = name, .shape = {}});
    return sum;
  };
  const auto ring = world.group(all, "ring");
  const int64_t own = rank, previous = (rank + kNumRanks - 1) % kNumRanks;
  int64_t got = -1;
  ring->send(&own, 1, DType::kI64, (rank + 1) % kNumRanks, {.site = "ring", .shape = {}});
  ring->recv(&got, 1, DType::kI64, static_cast<int>(previous), {.site = "ring", .shape = {}});
  return got == previous && sum_over(all, "all") == kNumRanks * (kNumRanks - 1) / 2 &&
         sum_over(near, "near") == kGroupRanks * near[0] + kGroupRanks * (kGroupRanks - 1) / 2;
}

/// Runs a rank, alone on its host; returns whether it ended as it should.
bool run_rank_of_large_job(int rank, Times& times) {
  Environment environment;
  environment.rank = rank;
  environment.world_size = kNumRanks;
  environment.master_addr = variable("CLEAVE_TEST_ADDRESS");
  environment.master_port = 20500;
  try {
    const auto world = connect(environment, {.timeout_s = 300, .flight_log_folder = ""});
    keep_latest(times.connected, now_ms());
    std::vector<int> all(kNumRanks);
    std::iota(all.begin(), all.end(), 0);
    if (!has_right_values(*world, all)) return false;
    keep_latest(times.computed, now_ms());
    const auto end = world->group(all, "end");
    end->barrier({.site = "end", .shape = {}});
    if (rank == kFailing) {
      times.failed = now_ms();
      world->abort(Error(Code::kIo, "rank 17 has no disk"));
      return true;
    }
    end->barrier({.site = "end", .shape = {}});
    return false;
  } catch (const Error& error) {
    keep_latest(times.reached, now_ms());
    const bool is_named = std::string(error.what()).find("rank 17 has no disk") == 0;
    if (!is_named) std::cerr << "rank " << rank << ": " << error.what() << '\n';
    return is_named;
  }
}

/// The ranks of one process, in threads. Writes its times and peak memory to CLEAVE_TEST_TIMES.
const ProcessRole kLargeJob("large_job", [] {
  const int first = std::stoi(variable("CLEAVE_TEST_FIRST"));
  Times times;
  std::atomic<int> num_right = 0;
  std::vector<std::thread> threads;
  threads.reserve(kRanksPerProcess);
  reserve_descriptors(int64_t{kRanksPerProcess} * (kNumRanks + 16), "this test");
  for (int i = 0; i < kRanksPerProcess; ++i) {
    threads.emplace_back(
        [&, rank = first + i] { num_right += run_rank_of_large_job(rank, times); });
  }
  for (std::thread& thread : threads) thread.join();
  std::ofstream(variable("CLEAVE_TEST_TIMES"))
      << times.connected << ' ' << times.computed << ' ' << times.failed << ' ' << times.reached
      << ' ' << peak_rss_bytes();
  return num_right == kRanksPerProcess ? 0 : 1;
});

TEST(LargeJobFull, MoreRanksThanOneHostHas_SumSendAndNameTheOneThatFails) {
  const TestFolder folder;
  const int pid = getpid();
  const std::string address =
      str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
  const int64_t begin = now_ms();
  std::list<ChildProcess> processes;
  for (int first = 0; first < kNumRanks; first += kRanksPerProcess) {
    processes.emplace_back(
        ChildOptions{.command = {own_program()},
                     .environment = {"CLEAVE_TEST_ROLE=large_job", str("CLEAVE_TEST_FIRST=", first),
                                     "CLEAVE_TEST_ADDRESS=" + address,
                                     str("CLEAVE_TEST_TIMES=", folder / std::to_string(first))}});
  }
  int64_t connected = 0, computed = 0, failed = 0, reached = 0, bytes = 0;
  int first = 0;
  for (ChildProcess& process : processes) {
    pollfd ended{process.pidfd(), POLLIN, 0};
    ASSERT_EQ(poll(&ended, 1, 600'000), 1);
    EXPECT_EQ(process.poll_exit(), 0) << "ranks from " << first;
    std::istringstream in(read_file(folder / std::to_string(first)));
    int64_t times[5] = {};
    for (int64_t& time : times) in >> time;
    connected = std::max(connected, times[0]);
    computed = std::max(computed, times[1]);
    failed = std::max(failed, times[2]);
    reached = std::max(reached, times[3]);
    bytes += times[4];
    first += kRanksPerProcess;
  }
  test::note_measured(kNumRanks, " ranks connected after ", connected - begin,
                      " ms, had their sums ", computed - connected,
                      " ms later; the failure reached all in ", reached - failed,
                      " ms; all ranks took ", bytes, " bytes");
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
