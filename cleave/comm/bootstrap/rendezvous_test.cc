#include "cleave/comm/bootstrap/rendezvous.h"

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/shm/segment_layout.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"
#include "tests/support/started_job.h"
#include "tests/support/thrown.h"

namespace cleave::rendezvous_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using test::milliseconds_since;
using testing::HasSubstr;

/// A rank that another launcher started: joins the others and sums its rank with theirs.
const ProcessRole kJoins("joins", [] {
  const int errors = open(std::getenv("CLEAVE_TEST_STDERR"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(errors, STDERR_FILENO);
  const double timeout_s = std::atof(std::getenv("CLEAVE_TEST_TIMEOUT"));
  return run_rank(*read_environment(),
                  [](World& world) {
                    std::vector<int> ranks;
                    for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
                    const auto group = world.group(ranks, "all");
                    int64_t sum = world.rank() + 1;
                    group->all_reduce(&sum, &sum, 1, DType::kI64, ReduceOp::kSum,
                                      {.site = "s", .shape = {}});
                    const int64_t want = world.size() * (world.size() + 1) / 2;
                    CLEAVE_CHECK(sum == want, Code::kNumerics, "sum=", sum, "; expected ", want);
                    if (std::getenv("CLEAVE_TEST_DIES") != nullptr && world.rank() == 1)
                      raise(SIGKILL);
                    if (std::getenv("CLEAVE_TEST_DIES") != nullptr) {
                      group->barrier({.site = "without rank 1", .shape = {}});
                    }
                  },
                  {.timeout_s = timeout_s, .flight_log_folder = ""});
});

using Job = test::StartedJob;

TEST(Rendezvous, RanksInAnyOrder_JoinAndLeaveNothing) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    Job job;
    for (const int rank : order) job.start(rank, 4);
    EXPECT_EQ(job.wait(), std::vector<int>(4, 0)) << job.errors(0) << job.errors(1);
    EXPECT_TRUE(job.is_clean());
  }
}

TEST(Rendezvous, LateRank_IsWaitedFor) {
  Job job;
  job.start(0, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  job.start(1, 2);
  EXPECT_EQ(job.wait(), std::vector<int>(2, 0)) << job.errors(0);
}

TEST(Rendezvous, MissingRanks_AreListedToAllAtTheTimeout) {
  Job job(0.6);
  const auto begin = Clock::now();
  job.start(0, 4);
  job.start(2, 4);
  EXPECT_EQ(job.wait(), std::vector<int>(2, 7));
  EXPECT_LT(milliseconds_since(begin), 1500);
  EXPECT_THAT(job.errors(0), HasSubstr("rank(s) 1, 3 of 4 did not join"));
  EXPECT_THAT(job.errors(1), HasSubstr("did not join"));
  EXPECT_TRUE(job.is_clean());
}

TEST(Rendezvous, WithoutRankZero_OthersSayWhereTheyWaited) {
  Job job(0.4);
  job.start(1, 2);
  EXPECT_EQ(job.wait(), std::vector<int>{7});
  EXPECT_THAT(job.errors(0), HasSubstr("rank 1 waits for rank 0"));
  EXPECT_TRUE(job.is_clean());
}

// Row R9: reported on all ranks with both values, exit 3.
TEST(Rendezvous, DifferentWorldSizes_AreReportedOnAllRanks) {
  Job job;
  const auto begin = Clock::now();
  job.start(0, 3);
  job.start(1, 2);
  job.start(2, 3);
  EXPECT_EQ(job.wait(), std::vector<int>(3, 3));
  EXPECT_LT(milliseconds_since(begin), 2500);  // 500 on a quiet machine
  test::note_measured("R9 different world sizes reported after ", milliseconds_since(begin), " ms");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.errors(rank), HasSubstr("rank 0 has world size 3, rank 1 (pid "));
    EXPECT_THAT(job.errors(rank), HasSubstr("has world size 2"));
  }
  EXPECT_TRUE(job.is_clean());
}

TEST(Rendezvous, DuplicateRanks_AreReportedOnAllRanks) {
  for (const int duplicate : {0, 1}) {
    Job job;
    job.start(0, 3);
    job.start(1, 3);
    job.start(duplicate, 3);
    EXPECT_EQ(job.wait(), std::vector<int>(3, 3)) << duplicate;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_THAT(job.errors(i), HasSubstr(str("rank ", duplicate, " is claimed by pid ")));
    }
    EXPECT_TRUE(job.is_clean());
  }
}

// Two launchers on one machine, each with two ranks, which srun -m cyclic would place so.
TEST(Rendezvous, HostsOfOneMachine_HaveASegmentEach) {
  std::vector<std::future<std::shared_ptr<SharedSegment>>> joined;
  for (int rank = 0; rank < 4; ++rank) {
    Environment environment;
    environment.rank = rank;
    environment.world_size = 4;
    environment.local_rank = rank / 2;
    environment.local_world_size = 2;
    environment.host = std::to_string(rank % 2);
    environment.job_id = str("hosts of one machine ", getpid());
    joined.push_back(std::async(std::launch::async,
                                [environment] { return rendezvous_on_host(environment, 10); }));
  }
  for (int rank = 0; rank < 4; ++rank) {
    const auto segment = joined[static_cast<size_t>(rank)].get();
    EXPECT_EQ(segment->num_ranks(), 4);
    EXPECT_EQ(segment->num_present(), 2);
    for (int other = 0; other < 4; ++other) {
      EXPECT_EQ(segment->has_rank(other), other % 2 == rank % 2) << rank << ' ' << other;
    }
  }
}

TEST(Rendezvous, RankBeyondTheWorld_IsRefused) {
  Job job;
  job.start(2, 2);
  EXPECT_EQ(job.wait(), std::vector<int>{3});
  EXPECT_THAT(job.errors(0), HasSubstr("RANK=2 with WORLD_SIZE=2"));
}

TEST(Rendezvous, RankKilledWithoutALauncher_IsNoticedByTheOthers) {
  for (const char* kernel : {"CLEAVE_TEST_KERNEL=any", "CLEAVE_TEST_WITHOUT_PIDFDS=1"}) {
    Job job;
    for (int rank = 0; rank < 3; ++rank) job.start(rank, 3, {"CLEAVE_TEST_DIES=1", kernel});
    EXPECT_EQ(job.wait(), (std::vector<int>{6, 137, 6})) << kernel;
    EXPECT_THAT(job.errors(0), HasSubstr("rank 1 (pid "));
    EXPECT_THAT(job.errors(0),
                HasSubstr(") died after all_reduce 1 on axis all at s; rank 0 stopped in barrier 2 "
                          "on axis all at without rank 1"));
  }
}

TEST(Rendezvous, TwoJobsAtTheSameTime_StayApart) {
  for (int pair = 0; pair < test::num_rounds(20); ++pair) {
    Job job;
    for (int rank = 0; rank < 2; ++rank) {
      job.start(rank, 2, {"TORCHELASTIC_RUN_ID=a"});
      job.start(rank, 2, {"TORCHELASTIC_RUN_ID=b"});
    }
    EXPECT_EQ(job.wait(), std::vector<int>(4, 0));
    EXPECT_TRUE(job.is_clean());
  }
}

/// Rank 0's reply on the wire.
struct Reply {
  int32_t code;
  char text[kAbortTextBytes];
};

/// Ranks of one job whose sockets and threads belong to this test.
class RanksByHand {
 public:
  RanksByHand() {
    setenv("XDG_RUNTIME_DIR", (folder_ / "").c_str(), 1);
    environment_.world_size = 4;
    environment_.master_port = 3;
  }
  ~RanksByHand() { unsetenv("XDG_RUNTIME_DIR"); }
  RanksByHand(const RanksByHand&) = delete;
  RanksByHand& operator=(const RanksByHand&) = delete;

  [[nodiscard]] Environment environment(int rank) const {
    Environment found = environment_;
    found.rank = rank;
    return found;
  }
  /// The failure of a rank that runs the real rendezvous in a thread.
  [[nodiscard]] std::future<Error> rendezvous(int rank) const {
    return std::async(std::launch::async, [environment = environment(rank)] {
      return test::thrown_by([&] { rendezvous_ranks(environment, 10); });
    });
  }
  /// Connects and sends the RankInfo of a rank.
  [[nodiscard]] Descriptor join(int rank) const {
    RendezvousDir dir(environment(rank));
    Descriptor socket = dir.try_connect();
    for (; !socket.is_open(); socket = dir.try_connect()) std::this_thread::yield();
    const RankInfo info{kJobMagic, rank, environment_.world_size, getpid(), rank};
    EXPECT_EQ(send(socket.get(), &info, sizeof(info), 0), ssize_t{sizeof(info)});
    return socket;
  }

 private:
  TestFolder folder_;
  Environment environment_;
};

TEST(Rendezvous, RankThatEndsDuringRendezvous_IsReportedToAll) {
  const RanksByHand ranks;
  std::future<Error> zero = ranks.rendezvous(0);
  const Descriptor two = ranks.join(2);
  { const Descriptor one = ranks.join(1); }
  const Error error = zero.get();
  EXPECT_EQ(error.code(), Code::kPeer);
  EXPECT_EQ(error.what(), str("rank 1 (pid ", getpid(), ") ended during rendezvous"));
  Reply reply{};
  ASSERT_EQ(recv(two.get(), &reply, sizeof(reply), 0), ssize_t{sizeof(reply)});
  EXPECT_EQ(reply.code, static_cast<int32_t>(Code::kPeer));
  EXPECT_STREQ(reply.text, error.what());
}

// Rank 0 closes connections that are silent for too long; a rank on a busy machine may be one.
TEST(Rendezvous, RankThatWasTooSlow_ConnectsAgain) {
  const RanksByHand ranks;
  RendezvousDir dir(ranks.environment(0));
  ASSERT_TRUE(dir.try_lock());
  const Descriptor listener = dir.listen();
  const auto next = [&] {
    pollfd state{listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&state, 1, 10'000), 1);
    return Descriptor(accept(listener.get(), nullptr, nullptr));
  };
  std::future<Error> one = ranks.rendezvous(1);
  { const Descriptor dropped = next(); }
  const Descriptor again = next();
  RankInfo info{};
  ASSERT_EQ(recv(again.get(), &info, sizeof(info), MSG_WAITALL), ssize_t{sizeof(info)});
  EXPECT_EQ(info.rank, 1);
  const Reply reply{static_cast<int32_t>(Code::kShape), "the outcome"};
  ASSERT_EQ(send(again.get(), &reply, sizeof(reply), 0), ssize_t{sizeof(reply)});
  const Error error = one.get();
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(), "the outcome");
}

TEST(RendezvousDir, FolderOpenToOthers_IsRefused) {
  const TestFolder folder;
  setenv("XDG_RUNTIME_DIR", (folder / "").c_str(), 1);
  Environment environment;
  environment.master_port = 1;
  RendezvousDir dir(environment);
  fs::create_directory(dir.folder());
  fs::permissions(dir.folder(), fs::perms::all);
  EXPECT_THROW(dir.try_lock(), Error);
  fs::permissions(dir.folder(), fs::perms::owner_all);
  EXPECT_TRUE(dir.try_lock());
  unsetenv("XDG_RUNTIME_DIR");
}

TEST(RendezvousDir, SocketOfAKilledRankZero_IsReplaced) {
  const TestFolder folder;
  setenv("XDG_RUNTIME_DIR", (folder / "").c_str(), 1);
  Environment environment;
  environment.master_port = 2;
  {
    RendezvousDir first(environment);
    ASSERT_TRUE(first.try_lock());
    const Descriptor listener = first.listen();
    struct stat info {};
    ASSERT_EQ(stat((first.folder() + "/socket").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    RendezvousDir second(environment);
    EXPECT_FALSE(second.try_lock());
    EXPECT_TRUE(second.try_connect().is_open());
    // A killed rank 0 leaves its folder behind; keep it from being removed here.
    fs::rename(first.folder(), folder / "left");
  }
  RendezvousDir third(environment);
  fs::rename(folder / "left", third.folder());
  EXPECT_FALSE(third.try_connect().is_open());
  ASSERT_TRUE(third.try_lock());
  const Descriptor listener = third.listen();
  EXPECT_TRUE(third.try_connect().is_open());
  unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace cleave::rendezvous_test
