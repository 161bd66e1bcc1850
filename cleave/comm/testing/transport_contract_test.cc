#include "cleave/comm/testing/transport_contract.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <unistd.h>

#include "cleave/comm/bootstrap/tcp_rendezvous.h"
#include "cleave/comm/shm/shm_world.h"
#include "cleave/comm/testing/process_roles.h"

namespace cleave {
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

// All groups of these tests but those of one host's ranks are between hosts.
INSTANTIATE_TEST_SUITE_P(HostsOfTwo, TransportContract,
                         testing::Values(Transport{"hosts_of_two", std::bind_front(run_hosts, 2)}),
                         transport_name);

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract,
                         testing::Values(Transport{"processes", run_processes}), transport_name);

}  // namespace
}  // namespace cleave
