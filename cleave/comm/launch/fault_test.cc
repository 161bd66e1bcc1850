// Kills, stops, hangs or terminates ranks and launchers of a job at random moments. ./run test
// injects each fault 5 times, --full 20 times, --release as often as
// docs/design/reliability-notes.md says. The roles of the rank processes are in launch_test.cc.
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/api/world.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/comm/launch/launch.h"
#include "tests/support/float16.h"
#include "tests/support/level.h"
#include "tests/support/running_launch.h"

namespace cleave::fault_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using test::eventually;
using test::milliseconds_since;
using test::note_measured;
using test::num_rounds;
using test::random_of_round;
using test::repeat_line;
using test::RunningLaunch;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

/// Waits until the moment of the fault: up to 20 ms, which is many collectives.
void wait_a_random_time(std::mt19937_64& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
}

int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

/// The pids of a job: the launcher's and the ranks'.
std::vector<pid_t> pids_of(const RunningLaunch& running, int num_ranks) {
  std::vector<pid_t> pids{running.launcher().pid()};
  for (int rank = 0; rank < num_ranks; ++rank) pids.push_back(running.rank(rank));
  return pids;
}

/// What a job may leave behind: names in /dev/shm, System V objects, sockets and folders in its
/// runtime folder.
std::vector<std::string> leftovers(const RunningLaunch& running, const std::vector<pid_t>& pids) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("cleave") != std::string::npos) found.push_back(entry.path());
  }
  for (const char* kind : {"shm", "sem", "msg"}) {
    std::ifstream table(str("/proc/sysvipc/", kind));
    for (std::string line; std::getline(table, line);) {
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        for (const pid_t pid : pids) {
          if (std::string_view(kind) != "sem" && word == std::to_string(pid)) found.push_back(line);
        }
      }
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(running.folder())) {
    if (!entry.is_regular_file()) found.push_back(entry.path());
  }
  return found;
}

/// Inodes of a process's open sockets.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator(str("/proc/", pid, "/fd"))) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// The lines of /proc/net for those `inodes` that are internet sockets.
std::vector<std::string> internet_sockets(const std::set<std::string>& inodes) {
  std::vector<std::string> found;
  for (const char* table : {"tcp", "tcp6", "udp", "udp6", "raw", "raw6"}) {
    std::ifstream file(str("/proc/net/", table));
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string word;
      for (int column = 0; column <= 9; ++column) words >> word;
      if (inodes.count(word) != 0) found.push_back(line);
    }
  }
  return found;
}

// Row R1: the others end within 250 ms, the launcher within 300 ms with 137. At most six lines name
// rank, pid, signal, step, operation, axis, and the command to resume.
TEST(Fault, RankKilledAtARandomMoment_StopsAllAndIsNamed) {
  test::Times times;
  const int rounds = num_rounds(200);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.RankKilled*"));
    auto random = random_of_round(round);
    const int num_ranks = 2 + static_cast<int>(random() % 3);
    const int victim = static_cast<int>(random() % static_cast<uint64_t>(num_ranks));
    RunningLaunch running("loop", num_ranks);
    wait_a_random_time(random);
    const auto begin = Clock::now();
    ASSERT_EQ(kill(running.rank(victim), SIGKILL), 0);
    EXPECT_EQ(running.wait(), 137);
    times.add(milliseconds_since(begin));
    EXPECT_FALSE(running.any_rank_alive());
    const std::string errors = running.errors();
    EXPECT_LE(num_lines(errors), 6) << errors;
    EXPECT_THAT(errors, HasSubstr(str("rank ", victim, " (pid ", running.rank(victim),
                                      ") was killed by signal 9 ")));
    EXPECT_THAT(errors, ContainsRegex("all_reduce [0-9]+ on axis tp at .* in step [0-9]+"));
    EXPECT_THAT(errors, HasSubstr("resume: cleave train --out out --resume\n"));
  }
  note_measured("R1 ", rounds, " ranks killed, launcher out after ", times.text());
  EXPECT_LT(times.judged(), 300);
}

// Row R1, before the ranks have joined.
TEST(Fault, RankKilledWhileItStarts_StopsAll) {
  const int rounds = num_rounds(50);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.RankKilledWhileItStarts*"));
    auto random = random_of_round(round);
    const TestFolder folder;
    LaunchOptions options = launch_of_role(3, "loop");
    options.environment.push_back("CLEAVE_TEST_FOLDER=" + folder / "");
    const auto delay = std::chrono::microseconds(random() % 15'000);
    const pid_t self = getpid();
    std::thread killer([&] {
      // The ranks are children of this process; kill the newest one.
      pid_t newest = 0;
      eventually([&] {
        for (const auto& task : fs::directory_iterator(str("/proc/", self, "/task"))) {
          std::ifstream children(task.path() / "children");
          for (pid_t child = 0; children >> child;) newest = std::max(newest, child);
        }
        return newest != 0;
      });
      std::this_thread::sleep_for(delay);
      kill(newest, SIGKILL);
    });
    const LaunchOutcome outcome = launch_ranks(options);
    killer.join();
    EXPECT_EQ(outcome.exit_code, 137);
    ASSERT_FALSE(outcome.lines.empty());
    EXPECT_THAT(outcome.lines.front(), HasSubstr(" was killed by signal 9 "));
  }
}

// Rows R3 and H1: no rank is left 200 ms after its launcher was killed, and no name of the job.
TEST(Fault, LauncherKilledAtARandomMoment_LeavesNothing) {
  test::Times times;
  const int rounds = num_rounds(100);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.LauncherKilled*"));
    auto random = random_of_round(round);
    const int num_ranks = 2 + static_cast<int>(random() % 3);
    RunningLaunch running("loop", num_ranks);
    wait_a_random_time(random);
    const auto begin = Clock::now();
    running.launcher().send(SIGKILL);
    EXPECT_TRUE(eventually([&] { return !running.any_rank_alive(); }));
    times.add(milliseconds_since(begin));
    EXPECT_THAT(leftovers(running, pids_of(running, num_ranks)), IsEmpty());
  }
  note_measured("R3 ", rounds, " launchers killed, last rank gone after ", times.text(),
                ", nothing left");
  EXPECT_LT(times.judged(), 200);
}

// Row H1: all processes of the job are killed at the same time.
TEST(Fault, AllKilledTogether_LeaveNothing) {
  const int rounds = num_rounds(100);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.AllKilled*"));
    auto random = random_of_round(round);
    RunningLaunch running("loop", 3);
    wait_a_random_time(random);
    const auto pids = pids_of(running, 3);
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    EXPECT_EQ(running.wait(), 137);
    EXPECT_TRUE(eventually([&] { return !running.any_rank_alive(); }));
    EXPECT_THAT(leftovers(running, pids), IsEmpty());
  }
  note_measured("H1 ", rounds, " jobs killed with all their processes, nothing left");
}

// Row R4: the ranks end their step and the launcher says with which signal.
TEST(Fault, SignalAtARandomMoment_LetsAllEndInOrder) {
  const int rounds = num_rounds(100);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.SignalAt*"));
    auto random = random_of_round(round);
    const int signal = random() % 2 == 0 ? SIGTERM : SIGINT;
    RunningLaunch running("loop", 3);
    wait_a_random_time(random);
    running.launcher().send(signal);
    EXPECT_EQ(running.wait(), 128 + signal);
    EXPECT_FALSE(running.any_rank_alive());
    EXPECT_EQ(running.errors(), "");
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(fs::exists(running.folder() + str("ended.", rank))) << "rank " << rank;
    }
  }
  note_measured("R4 ", rounds, " jobs terminated, all ended in order");
}

/// One hang: the signal that causes it and the rank that hangs.
struct Hang {
  int signal = SIGSTOP;
  int num_ranks = 2;
  int victim = 0;
};

/// Milliseconds from the hang to the launcher's end.
double expect_named(const Hang& hang, double limit_s, std::mt19937_64& random) {
  RunningLaunch running("loop", hang.num_ranks, {str("CLEAVE_TEST_TIMEOUT=", limit_s)});
  wait_a_random_time(random);
  const auto begin = Clock::now();
  EXPECT_EQ(kill(running.rank(hang.victim), hang.signal), 0);
  EXPECT_EQ(running.wait(), 7);
  const double took_ms = milliseconds_since(begin);
  EXPECT_FALSE(running.any_rank_alive());
  const std::string errors = running.errors();
  EXPECT_LE(num_lines(errors), 6) << errors;
  EXPECT_THAT(errors, ContainsRegex(str("rank [0-9] waits in all_reduce [0-9]+ on axis tp at "
                                        "[a-z]+ for rank ",
                                        hang.victim, "; rank ", hang.victim,
                                        " is (after|in) all_reduce [0-9]+ on axis tp at [a-z]+ in "
                                        "step [0-9]+; flight log: ")))
      << errors;
  const size_t at = errors.find("flight log: ");
  if (at == std::string::npos) return took_ms;
  const size_t end = errors.find('\n', at);
  const FlightLog log = read_flight_log(errors.substr(at + 12, end - at - 12));
  EXPECT_THAT(stuck_ranks(log), testing::ElementsAre(hang.victim));
  return took_ms;
}

// Row R5: detected by the limit + 0.3 s, all ranks ended 0.5 s later, exit code 7; the message and
// the flight log name the right rank.
TEST(Fault, HangingRank_IsNamedAtTheLimit) {
  const double limit_s = test::level() == test::Level::kRelease ? 1 : 0.5;
  test::Times times;
  const int rounds = num_rounds(50);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(repeat_line(round, "Fault.HangingRank*"));
    auto random = random_of_round(round);
    constexpr int kSignals[] = {SIGSTOP, SIGUSR1, SIGUSR2};  // stopped, asleep, waits for itself
    Hang hang{.signal = kSignals[round % 3], .num_ranks = 2 + static_cast<int>(random() % 3)};
    hang.victim = static_cast<int>(random() % static_cast<uint64_t>(hang.num_ranks));
    times.add(expect_named(hang, limit_s, random));
  }
  note_measured("R5 ", rounds, " hangs, limit ", limit_s, " s, launcher out after ", times.text(),
                ", the right rank named ",
                testing::Test::HasFailure() ? "not always" : "each time");
  EXPECT_LT(times.judged(), limit_s * 1e3 + 300 + 500);
}

// A job that is suspended (Ctrl-Z, a paused machine) for longer than the limit continues.
TEST(Fault, JobFrozenForLongerThanTheLimit_Continues) {
  RunningLaunch running("loop", 3, {"CLEAVE_TEST_TIMEOUT=0.7"});
  // The others wait for rank 0 when they are frozen, and again for a moment when they continue.
  kill(running.rank(0), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (const int rank : {1, 2}) kill(running.rank(rank), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // the suspension
  for (const int rank : {1, 2}) kill(running.rank(rank), SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(running.rank(0), SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  running.launcher().send(SIGTERM);
  EXPECT_EQ(running.wait(), 143);
  EXPECT_EQ(running.errors(), "");
}

// Row R6. As fault.SlowRankRelease it runs for an hour, with a limit that suits a busy machine.
TEST(Fault, SlowRankWithinTheLimit_IsNoFailure) {
  const bool is_soak = test::level() == test::Level::kSoak;
  const int limit_s = is_soak ? 10 : 1;
  const int steps = is_soak ? 450 : 3;
  run_ranks(2,
            [&](World& world) {
              const auto group = world.group({0, 1}, "dp");
              for (int step = 0; step < steps; ++step) {
                if (world.rank() == 1) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(800 * limit_s));
                }
                group->barrier({.site = "step", .shape = {}});
              }
            },
            {.timeout_s = static_cast<double>(limit_s), .flight_log_folder = ""});
  note_measured("R6 ", steps, " steps of 0.8 times the limit of ", limit_s, " s, no false alarm");
}

// Row N1: ranks of one host have no internet socket, so nothing can listen.
TEST(Fault, JobOnOneHost_HasNoInternetSocket) {
  const RunningLaunch running("loop", 4);
  for (const pid_t pid : pids_of(running, 4)) {
    EXPECT_THAT(internet_sockets(sockets_of(pid)), IsEmpty()) << "pid " << pid;
  }
}

// Row H2: even under umask 000 only the job's user can access the files that it creates.
TEST(Fault, FilesOfAJobUnderAnOpenUmask_AreItsUsersAlone) {
  const mode_t before = umask(0);
  const RunningLaunch running("loop", 2, {"CLEAVE_TEST_TIMEOUT=0.3"});
  umask(before);
  kill(running.rank(1), SIGSTOP);
  std::string log;
  EXPECT_TRUE(eventually([&] {
    for (const auto& entry : fs::directory_iterator(running.folder())) {
      if (entry.path().filename().string().starts_with("flight_log.")) log = entry.path();
    }
    return !log.empty();
  }));
  EXPECT_EQ(fs::status(log).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(leftovers(running, pids_of(running, 2)), IsEmpty());
}

/// The launcher's exit code under a limit that a shell has set.
int exit_code_under(const std::string& limit, int num_ranks, const TestFolder& folder) {
  ChildProcess launcher(
      {.command = {"sh", "-c", limit + "; exec \"$0\"", own_program()},
       .environment = {"CLEAVE_TEST_ROLE=launcher", "CLEAVE_TEST_RANK_ROLE=quiet",
                       str("CLEAVE_TEST_RANKS=", num_ranks), "CLEAVE_TEST_FOLDER=" + folder / ""}});
  pollfd ended{launcher.pidfd(), POLLIN, 0};
  return poll(&ended, 1, 10'000) == 1 ? launcher.poll_exit().value_or(-1) : -1;
}

// Row H4: reported at the start, within a second, with the required amount.
TEST(Fault, TooFewDescriptorsOrTooLittleMemory_IsReportedAtTheStart) {
  for (const std::string limit : {"ulimit -n 64", "ulimit -v 200000"}) {
    // Sanitizers need more address space for their shadow memory.
    if (test::kIsInstrumented && limit == "ulimit -v 200000") continue;
    const TestFolder folder;
    const auto begin = Clock::now();
    EXPECT_EQ(exit_code_under(limit, 200, folder), static_cast<int>(Code::kMemory)) << limit;
    EXPECT_LT(milliseconds_since(begin), 1000) << limit;
    EXPECT_THAT(read_file(folder / "stderr"), ContainsRegex("descriptors|bytes")) << limit;
  }
}

// Row D2: sums are bit-identical in any order of arrival. Oracle: the sum in rank order.
TEST(Fault, SumsOfLateRanks_HaveTheSameBits) {
  const int rounds = test::level() == test::Level::kRelease ? 1000 : 200;
  constexpr int kRanks = 4;
  const auto value = [](int rank, size_t i) {
    return std::ldexp(1.0F + 0.37F * static_cast<float>(i % 64),
                      9 * rank - static_cast<int>(i) % 13);
  };
  const auto sums_of = [&](World& world, size_t count) {
    const auto group = world.group({0, 1, 2, 3}, "dp");
    std::mt19937_64 random(static_cast<uint64_t>(world.rank()));
    std::vector<float> mine(count), want(count);
    std::vector<uint16_t> mine_bf16(count), want_bf16(count);
    for (size_t i = 0; i < count; ++i) {
      mine[i] = value(world.rank(), i);
      mine_bf16[i] = fp32_to_bf16(mine[i]);
      float sum_bf16 = 0;  // rounded once
      for (int r = 0; r < kRanks; ++r) {
        want[i] += value(r, i);
        sum_bf16 += bf16_to_fp32(fp32_to_bf16(value(r, i)));
      }
      want_bf16[i] = fp32_to_bf16(sum_bf16);
    }
    for (int round = 0; round < rounds; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      std::vector<float> sum(count);
      group->all_reduce(mine.data(), sum.data(), std::ssize(sum), DType::kF32, ReduceOp::kSum,
                        {.site = "late", .shape = {}});
      ASSERT_EQ(sum, want) << "round " << round;
      std::vector<uint16_t> sum_bf16(count);
      group->all_reduce(mine_bf16.data(), sum_bf16.data(), std::ssize(sum), DType::kBf16,
                        ReduceOp::kSum, {.site = "late", .shape = {}});
      ASSERT_EQ(sum_bf16, want_bf16) << "round " << round;
    }
  };
  // One sum that fits into a payload, and one that does not.
  for (const size_t count : {size_t{64}, size_t{1} << 16}) {
    run_ranks(kRanks, [&](World& world) { sums_of(world, count); });
  }
}

// Row R8: the cost of comparing one call with those of three other ranks.
TEST(Fault, ComparisonOfCalls_TakesAFractionOfAMicrosecond) {
  if (test::kIsInstrumented) GTEST_SKIP() << "timings under sanitizers are meaningless";
  constexpr int kNumCalls = 100'000;
  const std::vector<int64_t> shape{4, 128, 768};
  const Operation operation{.op = Op::kAllReduce,
                            .dtype = DType::kF32,
                            .count = int64_t{4} * 128 * 768,
                            .widths = {},
                            .call = {.site = "model.layers.3.mlp", .shape = shape}};
  const auto cpu_seconds = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  std::vector<CallHeader> headers(4);
  CallNote note{};
  double best_s = 1;
  int num_same = 0;
  for (int run = 0; run < 5; ++run) {
    const double begin = cpu_seconds();
    for (int i = 0; i < kNumCalls; ++i) {
      // Stands for the other ranks' headers in the shared segment.
      for (CallHeader& header : headers) header.sequence = static_cast<uint64_t>(i);
      headers[0] = make_header(operation, 7, static_cast<uint64_t>(i));
      if (run == 0 && i == 0) headers.assign(4, headers[0]);
      fill_note(note, operation);
      for (size_t peer = 1; peer < headers.size(); ++peer) {
        num_same += is_same_call(headers[0], headers[peer]) ? 1 : 0;
      }
    }
    best_s = std::min(best_s, (cpu_seconds() - begin) / kNumCalls);
  }
  EXPECT_EQ(num_same, 5 * 3 * kNumCalls);
  EXPECT_LT(best_s, 1e-6);
  note_measured("R8 header, note and three comparisons: ", std::round(best_s * 1e9), " ns a call");
}

}  // namespace
}  // namespace cleave::fault_test
