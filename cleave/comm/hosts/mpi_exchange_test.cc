// Exchanges over an MPI in memory, for what mpirun cannot show: tests/mpi has the real one.
#include "cleave/comm/hosts/mpi_exchange.h"

#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/hosts/host_network.h"
#include "cleave/comm/shm/collective_sync.h"

namespace cleave::mpi_exchange_test {
namespace {

using testing::HasSubstr;

/// A world of MPI whose ranks are threads.
struct MemoryWorld {
  using Key = std::array<int, 3>;  // from, to, tag
  std::mutex mutex;
  std::map<Key, std::vector<std::vector<std::byte>>> arrived;
};

class MemoryMessages : public MpiMessages {
 public:
  MemoryMessages(MemoryWorld& world, int rank) : world_(world), rank_(rank) {}

  void receive(std::span<std::byte> data, int from, int tag) override {
    open_.push_back({data, from, tag});
  }
  void send(std::span<const std::byte> data, int to, int tag) override {
    const std::lock_guard lock(world_.mutex);
    world_.arrived[{rank_, to, tag}].emplace_back(data.begin(), data.end());
  }
  void sum(std::span<std::byte> data, DType dtype, int lane) override {
    EXPECT_EQ(dtype, DType::kF64);
    EXPECT_EQ(lane, 5);
    for (size_t at = 0; at < data.size(); at += sizeof(double)) {
      double value = 0;
      std::memcpy(&value, data.data() + at, sizeof(value));
      value += 1000;  // of another rank
      std::memcpy(data.data() + at, &value, sizeof(value));
    }
  }
  bool are_done() override {
    const std::lock_guard lock(world_.mutex);
    std::erase_if(open_, [&](const Receive& receive) {
      auto& queue = world_.arrived[{receive.from, rank_, receive.tag}];
      if (queue.empty()) return false;
      EXPECT_EQ(queue.front().size(), receive.data.size());
      std::copy(queue.front().begin(), queue.front().end(), receive.data.begin());
      queue.erase(queue.begin());
      return true;
    });
    return open_.empty();
  }
  std::vector<int> awaited_ranks() override {
    std::vector<int> ranks;
    for (const Receive& receive : open_) ranks.push_back(receive.from);
    return ranks;
  }

 private:
  struct Receive {
    std::span<std::byte> data;
    int from, tag;
  };
  MemoryWorld& world_;
  int rank_;
  std::vector<Receive> open_;
};

class MemoryMpi : public Mpi {
 public:
  static constexpr int kPeerDies = 3;  // a world of this size never ends

  MemoryMpi(MemoryWorld& world, int rank, int size) : world_(world), rank_(rank), size_(size) {}

  [[nodiscard]] std::string library() const override { return "Test MPI 1.0"; }
  [[nodiscard]] std::string advice() const override { return "start all ranks with testrun"; }
  [[nodiscard]] bool is_launched() const override { return size_ > 0; }
  void begin(bool /*makes_lanes*/) override {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int max_tag() const override { return 10; }
  int make_lane(std::span<const int> /*ranks*/, int /*tag*/) override { return 5; }
  std::unique_ptr<MpiMessages> make_messages() override {
    return std::make_unique<MemoryMessages>(world_, rank_);
  }
  void progress() override {}
  void broadcast(std::span<std::byte> /*data*/) override {}
  void finalize() override {
    if (size_ == kPeerDies) std::promise<void>().get_future().wait();
  }
  [[noreturn]] void abort(int code) override { std::_Exit(code); }

 private:
  MemoryWorld& world_;
  int rank_, size_;
};

/// This rank's access to a job of two.
std::shared_ptr<RankEndpoint> endpoint_of(int rank, double timeout_s = 20) {
  return std::make_shared<RankEndpoint>(
      SharedSegment::create_replica(2, rank), rank,
      RankOptions{.timeout_s = timeout_s, .flight_log_folder = ""});
}

TEST(MpiExchange, OfTwoHosts_MovesTheRangesAndKeepsItsOwnBytes) {
  MemoryWorld world;
  const auto run = [&](int rank) {
    MemoryMpi mpi(world, rank, 2);
    MpiExchange exchange(endpoint_of(rank), mpi, {0, 1}, rank, 3);
    const int other = 1 - rank;
    for (int round = 0; round < 3; ++round) {
      const auto value = [&](int of) { return static_cast<std::byte>(10 * of + round + 1); };
      std::byte* const own = exchange.buffer();
      std::fill_n(own + 64, 8, value(rank));
      // Rank 1 sends nothing in round 1.
      const auto sent = [&](int of) {
        return of == 1 && round == 1 ? ByteRange{} : ByteRange{.begin = 64, .bytes = 8};
      };
      const ByteRange to[2] = {sent(rank), sent(rank)}, from[2] = {sent(other), sent(other)};
      exchange.exchange(to, from);
      EXPECT_EQ(exchange.received(rank), own);
      EXPECT_EQ(own[71], value(rank));
      EXPECT_NE(exchange.buffer(), own);
      if (sent(other).bytes > 0) {
        EXPECT_EQ(exchange.received(other)[71], value(other));
      }
    }
  };
  std::thread first([&] { run(0); });
  run(1);
  first.join();
}

TEST(MpiExchange, OfALaneThatSums_LeavesTheSumToMpi) {
  MemoryWorld world;
  MemoryMpi mpi(world, 0, 2);
  MpiExchange exchange(endpoint_of(0), mpi, {0, 1}, 0, 3, 5);
  std::byte* const own = exchange.buffer();
  const double values[3] = {1, 2, 3};
  std::memcpy(own, values, sizeof(values));
  exchange.sum(16, DType::kF64);
  EXPECT_EQ(exchange.buffer(), own);
  double sums[3];
  std::memcpy(sums, own, sizeof(sums));
  EXPECT_THAT(sums, testing::ElementsAre(1001, 1002, 3));
}

std::string failure_of_waiting(const std::shared_ptr<RankEndpoint>& job, Code code) {
  MemoryWorld world;
  MemoryMpi mpi(world, 0, 2);
  MpiExchange exchange(job, mpi, {0, 1}, 0, 3);
  const ByteRange to[2] = {}, from[2] = {{}, {.begin = 0, .bytes = 8}};
  try {
    exchange.exchange(to, from);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(MpiExchange, RankThatSendsNothing_IsNamedAfterTheTimeout) {
  const auto job = endpoint_of(0, 0.05);
  EXPECT_THAT(failure_of_waiting(job, Code::kTimeout), HasSubstr("over MPI for rank 1; rank 1 is"));
  EXPECT_EQ(job->segment().aborted()->code, Code::kTimeout);
}

TEST(MpiExchange, FailureOfTheJob_EndsAWait) {
  const auto job = endpoint_of(0);
  job->abort_for(1, Error(Code::kNumerics, "injected"));
  EXPECT_THAT(failure_of_waiting(job, Code::kPeer), HasSubstr("rank 1 failed: injected"));
}

TEST(MpiExchange, WaitForAnotherCall_MovesWhatIsLeftToMpi) {
  int num_calls = 0;
  const auto job = endpoint_of(0);
  job->set_progress([&] {
    if (++num_calls == 2) job->abort_for(1, Error(Code::kNumerics, "injected"));
  });
  const std::vector<int> ranks{0, 1};
  const uint32_t group = job->segment().join_group(7, ranks, "all");
  CollectiveSync sync(job, group, 0);
  EXPECT_THROW(sync.barrier(), Error);
  EXPECT_EQ(num_calls, 2);
}

const RankOptions kOptions{.timeout_s = 20, .flight_log_folder = ""};

std::string refusal(int mpi_rank, int mpi_size) {
  MemoryWorld world;
  Environment environment;
  environment.rank = 1;
  environment.world_size = 2;
  try {
    HostNetwork(std::make_unique<MemoryMpi>(world, mpi_rank, mpi_size), environment, kOptions);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kShape) << error.what();
    return error.what();
  }
  return "";
}

TEST(HostNetwork, WorldOfMpiThatIsNotTheLaunchers_IsRefusedWithItsRemedy) {
  EXPECT_EQ(refusal(1, 2), "");
  for (const auto& [rank, size] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 3}}) {
    EXPECT_EQ(refusal(rank, size), str("rank 1 of 2 is rank ", rank, " of ", size,
                                       " in Test MPI 1.0; start all ranks with testrun, or choose "
                                       "--transport tcp"));
  }
  EXPECT_THAT(refusal(0, 0), HasSubstr("rank 1 of 2 was not started by Test MPI 1.0"));
}

TEST(HostNetwork, GroupsBeyondTheTagsOfMpi_AreRefused) {
  MemoryWorld world;
  Environment environment;
  environment.world_size = 2;
  HostNetwork network(std::make_unique<MemoryMpi>(world, 0, 2), environment, kOptions);
  EXPECT_EQ(network.new_channel(), 0);
  EXPECT_EQ(network.new_channel(), 1);
  const auto job = endpoint_of(0);
  EXPECT_NE(network.connect(job, {0, 1}, 0, 0, 5), nullptr);  // tag 10
  EXPECT_THROW(network.connect(job, {0, 1}, 0, 1, 5), Error);
}

// MPI_Finalize waits for ever for a rank that has died.
TEST(HostNetwork, EndWithoutAPeer_EndsTheProcessAtTheTimeout) {
  EXPECT_EXIT(
      {
        MemoryWorld world;
        Environment environment;
        environment.rank = 1;
        environment.world_size = MemoryMpi::kPeerDies;
        HostNetwork(std::make_unique<MemoryMpi>(world, 1, MemoryMpi::kPeerDies), environment,
                    {.timeout_s = 0.05, .flight_log_folder = ""})
            .end();
      },
      testing::ExitedWithCode(static_cast<int>(Code::kTimeout)),
      "timeout of 0.05 s: rank 1 of 3 waits in MPI for the other ranks; one of them has ended");
}

TEST(HostNetwork, FastSumsOfHostsWithoutMpi_AreRefused) {
  for (const char* transport : {"auto", "tcp"}) {
    try {
      host_network(
          Environment{},
          {.timeout_s = 20, .flight_log_folder = "", .transport = transport, .fast_sums = true});
      ADD_FAILURE() << transport;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("--fast-sums needs MPI between the hosts"));
    }
  }
}

TEST(HostNetwork, OfTransports_IsChosenByNameAndLauncher) {
  const auto of = [](const std::string& transport) {
    return host_network(Environment{},
                        {.timeout_s = 20, .flight_log_folder = "", .transport = transport});
  };
  EXPECT_EQ(of("tcp"), nullptr);
  EXPECT_EQ(of("auto"), nullptr);  // no launcher of MPI
  EXPECT_THROW(of("infiniband"), Error);
}

}  // namespace
}  // namespace cleave::mpi_exchange_test
