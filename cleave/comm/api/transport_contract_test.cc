#include "tests/support/transport_contract.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/comm/shm/shm_world.h"
#include "tests/support/process_roles.h"
#include "tests/support/temp_folder.h"

namespace cleave::transport_contract_test {
namespace {

std::string transport_name(const testing::TestParamInfo<Transport>& info) {
  return info.param.name;
}

/// The environment of a new job, with an address and port that no other job uses.
Environment new_job(int num_ranks) {
  static std::atomic<int> port{20000};
  const int pid = getpid();
  Environment environment;
  environment.world_size = num_ranks;
  environment.master_addr =
      str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
  environment.master_port = port++;
  return environment;
}

using Segments = std::vector<std::shared_ptr<SharedSegment>>;

/// The segments of hosts, by rank: of `per_host` ranks each, nullptr for one alone on its host.
Segments segments_of_hosts(int num_ranks, int per_host) {
  Segments out(static_cast<size_t>(num_ranks));
  for (int first = 0; first < num_ranks; first += per_host) {
    const int end = std::min(first + per_host, num_ranks);
    if (end - first == 1) continue;
    const auto segment = SharedSegment::create_for_host(num_ranks, end - first);
    for (int rank = first; rank < end; ++rank) {
      segment->rank(rank).pid.store(getpid());
      out[static_cast<size_t>(rank)] = segment;
    }
  }
  return out;
}

/// run_ranks() on hosts of `per_host` ranks: each thread has its own replica of the segment, and
/// the replicas communicate only over TCP. Threads of one host also share a segment.
void run_hosts(int per_host, int num_ranks, const std::function<void(World&)>& body,
               const RankOptions& options) {
  const Environment job = new_job(num_ranks);
  const Segments hosts = segments_of_hosts(num_ranks, per_host);
  Segments segments;
  for (int rank = 0; rank < num_ranks; ++rank) {
    segments.push_back(SharedSegment::create_replica(num_ranks, rank));
  }
  const auto run_rank = [&](int rank) {
    Environment environment = job;
    environment.rank = rank;
    const auto& segment = segments[static_cast<size_t>(rank)];
    const auto& host = hosts[static_cast<size_t>(rank)];
    auto replicator = std::make_unique<TcpReplicator>(
        segment, rank, rendezvous_hosts(environment, options.timeout_s), options.timeout_s, host);
    ShmWorld world(segment, rank, options, std::move(replicator), host);
    try {
      body(world);
    } catch (...) {
      world.abort(as_error(std::current_exception()));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  for (const auto& segment : segments) {
    if (const auto cause = segment->aborted()) throw Error(cause->code, cause->text);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, TransportContract,
                         testing::Values(Transport{"threads", run_ranks}), transport_name);

INSTANTIATE_TEST_SUITE_P(Hosts, TransportContract,
                         testing::Values(Transport{"hosts", std::bind_front(run_hosts, 1)}),
                         transport_name);

// All groups of these tests but those of one host's ranks are between hosts. Large collectives of
// three and more ranks pass through the memory of each host; of three ranks, one is alone.
INSTANTIATE_TEST_SUITE_P(HostsOfTwo, TransportContract,
                         testing::Values(Transport{"hosts_of_two", std::bind_front(run_hosts, 2)}),
                         transport_name);

INSTANTIATE_TEST_SUITE_P(Full, TransportContract,
                         testing::Values(Transport{"hosts_of_three",
                                                   std::bind_front(run_hosts, 3)}),
                         transport_name);

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract,
                         testing::Values(Transport{"processes", run_processes}), transport_name);

std::string failure_of_uneven_hosts(const std::function<void(World&)>& body, Code code,
                                    double timeout_s = 20, const std::string& logs = "") {
  const RankOptions options{.timeout_s = timeout_s, .flight_log_folder = logs};
  return contract::expect_error(code, [&] { run_hosts(2, 3, body, options); });
}

/// Hosts of ranks 0 and 1, and of rank 2 alone; a group of each host and one of all.
struct UnevenGroups {
  explicit UnevenGroups(World& world)
      : all(contract::all(world)),
        host(world.rank() < 2 ? world.group({0, 1}, "host") : world.group({2}, "host")) {}
  std::shared_ptr<Group> all, host;
};

TEST(UnevenHosts, SumsInsideAndBetweenHosts_AreThoseOfTheirRanks) {
  run_hosts(2, 3,
            [](World& world) {
              const UnevenGroups groups(world);
              for (int i = 0; i < 20; ++i) {
                float of_host = static_cast<float>(world.rank() + 1), of_all = of_host;
                groups.host->all_reduce(&of_host, &of_host, 1, DType::kF32, ReduceOp::kSum,
                                        contract::call("host"));
                groups.all->all_reduce(&of_all, &of_all, 1, DType::kF32, ReduceOp::kSum,
                                       contract::call("all"));
                EXPECT_EQ(of_host, 3);  // 1 + 2, or 3 alone
                EXPECT_EQ(of_all, 6);
              }
            },
            {.timeout_s = 20, .flight_log_folder = ""});
}

// Rank 2 is alone on its host: no other rank moves what it sends to itself.
TEST(UnevenHosts, AllToAll_MovesWhatARankAloneOnItsHostSendsToItself) {
  run_hosts(2, 3,
            [](World& world) {
              const auto all = contract::all(world);
              for (const int64_t count : {1, 50'000}) {  // the second in several pieces
                const std::vector<int64_t> counts(3, count);
                std::vector<int64_t> in, got(static_cast<size_t>(3 * count), -1), want;
                for (int r = 0; r < 3; ++r) {
                  in.insert(in.end(), static_cast<size_t>(count), 10 * world.rank() + r);
                  want.insert(want.end(), static_cast<size_t>(count), 10 * r + world.rank());
                }
                all->all_to_all(in.data(), counts, got.data(), counts, DType::kI64,
                                contract::call("a2a"));
                EXPECT_EQ(got, want) << "rank " << world.rank();
              }
            },
            {.timeout_s = 20, .flight_log_folder = ""});
}

// Rank 0 waits in its host's segment, the ranks that fail in the job's, and the other way round.
TEST(UnevenHosts, FailureOfOneRank_EndsWaitsInBothSegments) {
  for (const int failed : {1, 2}) {
    const std::string text = failure_of_uneven_hosts(
        [&](World& world) {
          const UnevenGroups groups(world);
          if (world.rank() == failed) throw Error(Code::kNumerics, "injected");
          const auto& waits = world.rank() == 0 ? groups.host : groups.all;
          const std::string seen =
              contract::expect_error(Code::kPeer, [&] { waits->barrier(contract::call("end")); });
          EXPECT_THAT(seen, testing::HasSubstr(str("rank ", failed, " failed: injected")));
          throw Error(Code::kPeer, seen);
        },
        Code::kNumerics);
    EXPECT_EQ(text, "injected");
  }
}

TEST(UnevenHosts, DesyncInsideAHost_IsReportedOnAllHosts) {
  const std::string text = failure_of_uneven_hosts(
      [](World& world) {
        const UnevenGroups groups(world);
        float value = 1;
        const auto run = [&] {
          if (world.rank() == 0) groups.host->barrier(contract::call("x"));
          if (world.rank() == 1) {
            groups.host->broadcast(&value, 1, DType::kF32, 0, contract::call("x"));
          }
          groups.all->barrier(contract::call("end"));
        };
        throw Error(Code::kDesync, contract::expect_error(Code::kDesync, run));
      },
      Code::kDesync);
  EXPECT_THAT(text, testing::HasSubstr("ranks 0 and 1 differ on axis host"));
}

// Rank 0 waits in its host's segment for rank 1, which waits in the job's for ranks 0 and 2: either
// of the two reports.
TEST(UnevenHosts, TimeoutInsideAHost_NamesWhereTheOtherRankIsInTheJob) {
  const test::TempFolder folder;
  const std::string text = failure_of_uneven_hosts(
      [&](World& world) {
        const UnevenGroups groups(world);
        groups.host->barrier(contract::call("first"));
        groups.all->barrier(contract::call("first"));
        if (world.rank() == 0) groups.host->barrier(contract::call("wait"));
        if (world.rank() == 1) groups.all->barrier(contract::call("elsewhere"));
        // The fault: a rank that is late by more than the timeout.
        if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
        groups.all->barrier(contract::call("end"));
      },
      Code::kTimeout, 0.4, folder.path().string());
  const bool is_of_rank_0 = text.find("rank 0 waits") != std::string::npos;
  EXPECT_THAT(text,
              testing::HasSubstr(is_of_rank_0 ? "rank 1 is in barrier 2 on axis all at elsewhere"
                                              : "rank 0 is in barrier 2 on axis host at wait"));
  const size_t path = text.find("; flight log: ");
  ASSERT_NE(path, std::string::npos) << text;
  const FlightLog log = read_flight_log(text.substr(path + 14));
  ASSERT_EQ(log.ranks.size(), 3U);
  EXPECT_EQ(log.ranks[2].state, "joined");
  EXPECT_FALSE(log.ranks[static_cast<size_t>(log.written_by)].waits_for.empty());
  const auto site = [&](size_t rank) { return log.ranks[rank].operations.back().site; };
  EXPECT_EQ(site(0), "wait");
  EXPECT_EQ(site(1), "elsewhere");
}

}  // namespace
}  // namespace cleave::transport_contract_test
