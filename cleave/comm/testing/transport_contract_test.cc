#include "cleave/comm/testing/transport_contract.h"

#include <atomic>
#include <exception>
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

/// run_ranks() as if every rank had its own host: each thread has its own replica of the segment,
/// and the replicas communicate only over TCP.
void run_hosts(int num_ranks, const std::function<void(World&)>& body, const RankOptions& options) {
  const Environment job = new_job(num_ranks);
  std::vector<std::shared_ptr<SharedSegment>> segments;
  for (int rank = 0; rank < num_ranks; ++rank) {
    segments.push_back(SharedSegment::create_replica(num_ranks, rank));
  }
  const auto run_rank = [&](int rank) {
    Environment environment = job;
    environment.rank = rank;
    const auto& segment = segments[static_cast<size_t>(rank)];
    ShmWorld world(
        segment, rank, options,
        std::make_unique<TcpReplicator>(
            segment, rank, rendezvous_hosts(environment, options.timeout_s), options.timeout_s));
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

INSTANTIATE_TEST_SUITE_P(Hosts, TransportContract, testing::Values(Transport{"hosts", run_hosts}),
                         transport_name);

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract,
                         testing::Values(Transport{"processes", run_processes}), transport_name);

}  // namespace
}  // namespace cleave
