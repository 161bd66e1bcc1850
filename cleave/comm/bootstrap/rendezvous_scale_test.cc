#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/rendezvous_client.h"
#include "cleave/comm/bootstrap/rendezvous_server.h"
#include "tests/support/level.h"

namespace cleave::rendezvous_scale_test {
namespace {

using Clock = std::chrono::steady_clock;
using test::milliseconds_since;
using testing::HasSubstr;

/// Enough for the sanitizers to see everything; they are ten times slower.
constexpr int kNumRanks = test::kIsInstrumented ? 256 : 4096;

int64_t resident_bytes() {
  int64_t mapped = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> mapped >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// Rank 0 in a thread of its own, and the clients of the other ranks, each with its connection.
class LargeJob {
  std::vector<Environment> environments_;  // before the others, which refer to it

 public:
  explicit LargeJob(int num_ranks, double timeout_s = 60)
      : environments_(static_cast<size_t>(num_ranks)) {
    reserve_descriptors(int64_t{3} * num_ranks, "this test");
    const int pid = getpid();
    const std::string host =
        str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
    Descriptor listener = listen_at(*find_address(host, 0));
    const HostAddress address = own_address(listener.get());
    for (int rank = 0; rank < num_ranks; ++rank) {
      Environment& environment = environments_[static_cast<size_t>(rank)];
      environment.rank = rank;
      environment.world_size = num_ranks;
      clients.push_back(std::make_unique<RendezvousClient>(environment, address, timeout_s));
    }
    zero = std::async(
        std::launch::async, [this, address, timeout_s, held = std::move(listener)]() mutable {
          try {
            const auto sockets =
                serve_rendezvous(environments_[0], address, std::move(held), timeout_s);
            return str(sockets.size(), " sockets");
          } catch (const Error& error) {
            return std::string(error.what());
          }
        });
  }

  /// Calls `visit` with each rank from `first`, on four threads.
  void for_each(int first, const std::function<void(RendezvousClient&, int)>& visit) {
    constexpr int kNumThreads = 4;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kNumThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const auto size = static_cast<int>(clients.size());
        for (int rank = first + thread; rank < size; rank += kNumThreads) {
          visit(*clients[static_cast<size_t>(rank)], rank);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<RendezvousClient>> clients;  // by rank; rank 0's is not used
  std::future<std::string> zero;                           // what rank 0 ends with
};

/// The error that a rank receives; "" if it receives none.
std::string outcome_of(const RendezvousClient& client) {
  try {
    client.receive_outcome();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// All ranks join. `own`: of every rank. Returns how many have joined and, with a
/// port, got the right table.
int join_all(LargeJob& job, const Endpoint& own) {
  std::atomic<int> num_joined = 0;
  job.for_each(1, [&](RendezvousClient& client, int /*rank*/) {
    client.connect();
    client.join(own);
  });
  job.for_each(1, [&](RendezvousClient& client, int rank) {
    client.receive_outcome();
    if (own.port == 0) {
      ++num_joined;
      return;
    }
    const auto table = client.receive_table();
    num_joined += static_cast<int>(table.endpoints.size()) == rank &&
                  (rank == 1 || table.endpoints.back().port == own.port);
  });
  return num_joined;
}

// The targets are 20 s and 256 MB on two CPUs; the memory of this test is that of all ranks.
TEST(RendezvousScale, ThousandsOfRanks_JoinWithinTimeAndMemory) {
  for (const int port : {0, 1}) {
    const int64_t before = resident_bytes();
    const auto begin = Clock::now();
    LargeJob job(kNumRanks);
    EXPECT_EQ(join_all(job, {0, port, {}}), kNumRanks - 1);
    const int64_t bytes = resident_bytes() - before;
    job.for_each(1, [](RendezvousClient& client, int) { client.report(std::nullopt); });
    job.for_each(1, [](RendezvousClient& client, int) { EXPECT_EQ(outcome_of(client), ""); });
    const double ms = milliseconds_since(begin);
    EXPECT_EQ(job.zero.get(), str(kNumRanks, " sockets"));
    EXPECT_LT(ms, test::limit_ms(20'000));
    EXPECT_LT(bytes, test::kIsInstrumented ? 1'000'000'000 : 256'000'000);
    test::note_measured(kNumRanks, port == 0 ? " ranks" : " ranks that accept connections",
                        " joined in ", ms, " ms; rank 0 and all clients took ", bytes, " bytes");
  }
}

TEST(RendezvousScale, FailureOfOneRank_ReachesThousands) {
  LargeJob job(kNumRanks);
  EXPECT_EQ(join_all(job, {}), kNumRanks - 1);
  const auto begin = Clock::now();
  job.clients[17]->report(Error(Code::kIo, "rank 17 has no disk"));
  std::atomic<int> num_reached = 0;
  job.for_each(1, [&](RendezvousClient& client, int) {
    num_reached += outcome_of(client) == "rank 17 has no disk";
    client.take_socket();
  });
  const double ms = milliseconds_since(begin);
  EXPECT_EQ(num_reached, kNumRanks - 1);
  EXPECT_EQ(job.zero.get(), "rank 17 has no disk");
  EXPECT_LT(ms, test::limit_ms(2000));
  test::note_measured("a failure reached ", kNumRanks, " ranks in ", ms, " ms");
}

TEST(RendezvousScale, RanksThatDoNotReport_AreNamed) {
  LargeJob job(40, 1);
  EXPECT_EQ(join_all(job, {}), 39);
  job.for_each(20, [](RendezvousClient& client, int) { client.report(std::nullopt); });
  const std::string text = outcome_of(*job.clients[39]);
  EXPECT_THAT(text, HasSubstr("timeout of 1 s: rank(s) 1, 2, 3, 4, 5, 6, 7, 8, ... (19 in total) "
                              "of 40 joined, but did not report"));
  EXPECT_EQ(job.zero.get(), text);
}

}  // namespace
}  // namespace cleave::rendezvous_scale_test
