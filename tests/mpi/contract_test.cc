// The transport contract over MPI. mpirun starts this program; its processes run every test
// together, on hosts of one rank or of two, although they are on one machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <mpi.h>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/hosts/host_network.h"
#include "cleave/comm/shm/shm_world.h"
#include "tests/support/transport_contract.h"

namespace cleave {
namespace {

constexpr double kStartTimeoutS = 20;  // of what is not under test

/// Whether MPI adds, in all tests of this run: --fast-sums.
bool fast_sums = false;

/// The processes that mpirun started.
const Environment& launched() {
  static const Environment environment = read_environment().value();
  return environment;
}

const std::shared_ptr<HostNetwork>& network() {
  static const auto begun = host_network(launched(), {.timeout_s = kStartTimeoutS,
                                                      .flight_log_folder = "",
                                                      .transport = "mpi",
                                                      .fast_sums = fast_sums});
  return begun;
}

/// The environment of this process in a job of the first `num_ranks` processes.
Environment environment_of(int per_host, int num_ranks) {
  static int num_jobs = 0;
  const int rank = launched().rank, host = rank / per_host;
  Environment environment;
  environment.rank = rank;
  environment.world_size = num_ranks;
  environment.local_rank = rank % per_host;
  environment.local_world_size = std::min(per_host, num_ranks - host * per_host);
  environment.host = std::to_string(host);
  environment.master_addr = "127.0.0.1";  // rank 0 finds a port
  environment.job_id = str(launched().job_id, ".", ++num_jobs);
  return environment;
}

/// Runs one rank of a job, as connect() and run_as_rank() do. Returns the job's first failure.
std::optional<Abort> run_rank(const Environment& environment,
                              const std::function<void(World&)>& body, const RankOptions& options) {
  auto sockets = rendezvous_hosts(environment, kStartTimeoutS);
  auto host = rendezvous_on_host(environment, kStartTimeoutS);
  const int rank = environment.rank;
  const auto segment = SharedSegment::create_replica(environment.world_size, rank);
  auto replicator =
      std::make_unique<TcpReplicator>(segment, rank, std::move(sockets), options.timeout_s, host);
  {
    ShmWorld world(segment, rank, options, std::move(replicator), std::move(host), network());
    try {
      body(world);
    } catch (...) {
      world.abort(as_error(std::current_exception()));
    }
  }
  return segment->aborted();
}

/// A failure as bytes; code 0: none.
struct Outcome {
  int code = 0;
  std::array<char, 1024> text{};
};

/// Waits without taking the core from the ranks that work; MPI's own waits spin.
void wait_for(MPI_Request request) {
  int is_done = 0;
  while (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && is_done == 0) {
    usleep(1000);
  }
}

/// run_ranks() over MPI: the processes that are not among the first `num_ranks` wait, and throw
/// what the others throw.
void run_over_mpi(int per_host, int num_ranks, const std::function<void(World&)>& body,
                  const RankOptions& options) {
  ASSERT_LE(num_ranks, launched().world_size) << "start more processes";
  MPI_Request begins = MPI_REQUEST_NULL, ends = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &begins);
  wait_for(begins);
  Environment environment = environment_of(std::clamp(num_ranks - 1, 1, per_host), num_ranks);
  network()->find_rendezvous(environment);
  Outcome own;
  if (launched().rank < num_ranks) {
    if (const auto cause = run_rank(environment, body, options)) {
      own.code = static_cast<int>(cause->code);
      cause->text.copy(own.text.data(), own.text.size() - 1);
    }
  }
  std::vector<Outcome> all(static_cast<size_t>(launched().world_size));
  MPI_Iallgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD,
                 &ends);
  wait_for(ends);
  for (const Outcome& outcome : all) {
    if (outcome.code != 0) throw Error(static_cast<Code>(outcome.code), outcome.text.data());
  }
}

std::string transport_name(const testing::TestParamInfo<Transport>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Mpi, TransportContract,
    testing::Values(Transport{"hosts_of_one", std::bind_front(run_over_mpi, 1)},
                    Transport{"hosts_of_two", std::bind_front(run_over_mpi, 2)}),
    transport_name);

/// Numbers whose sum depends on the order.
double order_sensitive(int rank, int64_t i) {
  const auto mixed =
      static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15U * static_cast<uint64_t>(2 * rank + 3);
  return (static_cast<double>(mixed >> 40U) - (1 << 23)) * (rank % 2 == 0 ? 1e-3 : 1.0);
}

// Oracle: rank threads. Numbers whose sum depends on the order, in several pieces.
TEST(MpiSums, OfAnyOrderSensitiveNumbers_HaveTheBitsOfOneHost) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 200'003;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16, DType::kI64}) {
    const auto sum = [&](World& world, Values& data) {
      contract::all(world)->all_reduce(data.data(), data.data(), kCount, dtype, ReduceOp::kSum,
                                       contract::call("sum"));
    };
    const auto input = [&](int rank) {
      return Values(dtype, kCount, [&](int64_t i) {
        return order_sensitive(rank, i) / (dtype == DType::kF16 ? 4096 : 1);
      });
    };
    Values want = input(0);
    run_ranks(kRanks, [&](World& world) {
      Values data = input(world.rank());
      sum(world, data);
      if (world.rank() == 0) want = data;
    });
    for (const int per_host : {1, 2, 3}) {
      run_over_mpi(per_host, kRanks,
                   [&](World& world) {
                     Values data = input(world.rank());
                     sum(world, data);
                     EXPECT_TRUE(data == want)
                         << name(dtype) << ", " << per_host << " ranks a host";
                   },
                   {.timeout_s = 20, .flight_log_folder = ""});
    }
  }
}

// Oracle: long double. A sum of n numbers in any order differs from it by at most (n - 1) u times
// the sum of the magnitudes, u = 2^-24 or 2^-53, to first order (Higham, section 4.2). Reading the
// inputs as they are rounded to the dtype costs another u of them. Two groups add at the same time.
template <class T>
void check_fast_sums(DType dtype, int per_host) {
  constexpr int kRanks = 4;
  static constexpr int64_t kCount = 600'003;
  const RankOptions options{
      .timeout_s = 20, .flight_log_folder = "", .transport = "mpi", .fast_sums = true};
  run_over_mpi(
      per_host, kRanks,
      [&](World& world) {
        const auto other = contract::all(world), group = contract::all(world);
        const auto first = std::make_shared<Values>(
            dtype, kCount, [&](int64_t i) { return order_sensitive(world.rank(), i); });
        Values second = *first;
        auto& async = dynamic_cast<AsyncGroup&>(*other);
        const auto done = async.start([other, first, dtype] {
          other->all_reduce(first->data(), first->data(), kCount, dtype, ReduceOp::kSum,
                            contract::call("other"));
        });
        group->all_reduce(second.data(), second.data(), kCount, dtype, ReduceOp::kSum,
                          contract::call("sum"));
        async.await(done);
        int64_t num_beyond = 0;
        for (int64_t i = 0; i < kCount; ++i) {
          long double exact = 0, magnitude = 0;
          for (int rank = 0; rank < kRanks; ++rank) {
            exact += order_sensitive(rank, i);
            magnitude += std::abs(order_sensitive(rank, i));
          }
          const long double bound = kRanks * magnitude * std::numeric_limits<T>::epsilon() / 2;
          for (Values* sums : {first.get(), &second}) {
            T got{};
            std::memcpy(&got, sums->data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
            if (!(std::abs(got - exact) <= bound)) ++num_beyond;
          }
        }
        EXPECT_EQ(num_beyond, 0) << name(dtype) << ", " << per_host << " ranks a host";
      },
      options);
}

TEST(MpiFastSums, OfOrderSensitiveNumbers_AreWithinTheBoundOfAnyOrder) {
  for (const int per_host : {1, 2, 3}) {
    check_fast_sums<float>(DType::kF32, per_host);
    check_fast_sums<double>(DType::kF64, per_host);
  }
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  GTEST_FLAG_SET(brief, cleave::launched().rank != 0);
  testing::InitGoogleTest(&argc, argv);
  cleave::fast_sums = argc == 2 && std::string_view(argv[1]) == "--fast-sums";
  GTEST_FLAG_SET(filter, cleave::fast_sums ? "MpiFastSums.*" : "-MpiFastSums.*");
  if (cleave::network() == nullptr) return 1;
  const int result = RUN_ALL_TESTS();
  // Not through exit(): the failures that the tests cause would end MPI as those of a job do.
  std::cout.flush();
  (void)std::fflush(nullptr);
  MPI_Finalize();
  _exit(result);
}
