#include "cleave/comm/launch/launch.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <new>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/comm/launch/child_process.h"
#include "cleave/comm/shm/rank_endpoint.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"
#include "tests/support/running_launch.h"

namespace cleave::launch_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using test::eventually;
using test::milliseconds_since;
using test::RunningLaunch;
using testing::HasSubstr;

// Roles of the rank and launcher processes of these tests.

volatile std::sig_atomic_t g_stop_signal = 0;
volatile std::sig_atomic_t g_hang_signal = 0;

void note_signal(int signal) {
  (signal == SIGUSR1 || signal == SIGUSR2 ? g_hang_signal : g_stop_signal) = signal;
}

/// Hangs forever after a signal: sleeps (SIGUSR1) or waits on its own future (SIGUSR2).
void hang_on_request() {
  while (g_hang_signal == SIGUSR1) pause();
  if (g_hang_signal == SIGUSR2) std::promise<void>().get_future().wait();
}

/// Sums in a loop until a signal arrives. Writes its pid to CLEAVE_TEST_FOLDER after a few steps.
int sum_until_signal(World& world) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    sigaction(signal, &action, nullptr);
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const auto group = world.group(ranks, "tp");
  if (world.rank() == 0) world.note_resume_hint("cleave train --out out --resume");
  std::vector<float> data(1 << 16, 0.0F);
  for (int64_t step = 0;; ++step) {
    world.note_step(step);
    hang_on_request();
    int64_t stop = g_stop_signal;
    group->all_reduce(&stop, &stop, 1, DType::kI64, ReduceOp::kMax, {.site = "stop", .shape = {}});
    if (stop != 0) {
      std::ofstream(str(std::getenv("CLEAVE_TEST_FOLDER"), "/ended.", world.rank()));
      return 128 + static_cast<int>(stop);
    }
    group->all_reduce(data.data(), data.data(), 1 << 16, DType::kF32, ReduceOp::kSum,
                      {.site = "loop", .shape = {}});
    if (step == 3) {
      const std::string folder = std::getenv("CLEAVE_TEST_FOLDER");
      std::ofstream(str(folder, "/part.", world.rank())) << getpid();
      fs::rename(str(folder, "/part.", world.rank()), str(folder, "/pid.", world.rank()));
    }
  }
}

const ProcessRole kLoop("loop", [] {
  int code = 0;
  const char* limit = std::getenv("CLEAVE_TEST_TIMEOUT");
  RankOptions options;
  if (limit != nullptr) options.timeout_s = std::atof(limit);
  options.flight_log_folder = std::getenv("CLEAVE_TEST_FOLDER");
  const int error = run_rank(
      *read_environment(), [&](World& world) { code = sum_until_signal(world); }, options);
  return error != 0 ? error : code;
});

const ProcessRole kStubborn("stubborn", [] {
  return run_rank(*read_environment(), [](World& world) {
    std::signal(SIGTERM, SIG_IGN);
    sum_until_signal(world);
    while (true) pause();
  });
});

const ProcessRole kThrows("throws", [] {
  return run_rank(*read_environment(), [](World& world) {
    const auto group = world.group({0, 1, 2}, "dp");
    world.note_step(12);
    group->barrier({.site = "start", .shape = {}});
    if (world.rank() == 1) throw Error(Code::kNumerics, "gradient norm is nan");
    group->barrier({.site = "end", .shape = {}});
  });
});

/// Fails, and then takes longer to end than the launcher waits.
const ProcessRole kEndsSlowly("ends_slowly", [] {
  const int code = run_rank(*read_environment(), [](World& world) {
    const auto group = world.group({0, 1}, "dp");
    group->barrier({.site = "start", .shape = {}});
    if (world.rank() == 1) throw Error(Code::kIo, "the disk is full");
    group->barrier({.site = "end", .shape = {}});
  });
  if (code == static_cast<int>(Code::kIo)) std::this_thread::sleep_for(std::chrono::seconds(5));
  return code;
});

/// Throws in a thread of its own, where the rank cannot catch the exception.
const ProcessRole kThrowsInAThread("throws_in_a_thread", [] {
  return run_rank(*read_environment(), [](World& world) {
    const auto group = world.group({0, 1, 2}, "dp");
    group->barrier({.site = "start", .shape = {}});
    if (world.rank() == 1) std::thread([] { throw std::runtime_error("no more rows"); }).join();
    group->barrier({.site = "end", .shape = {}});
  });
});

const ProcessRole kOwnCode("own_code", [] {
  const Environment environment = *read_environment();
  if (environment.rank == 1) return 42;
  return run_rank(environment, [](World& world) {
    world.group({0, 1}, "dp")->barrier({.site = "x", .shape = {}});
  });
});

const ProcessRole kHangs("hangs", [] {
  return run_rank(
      *read_environment(),
      [](World& world) {
        const auto group = world.group({0, 1, 2}, "tp");
        group->barrier({.site = "start", .shape = {}});
        if (world.rank() == 2) raise(SIGSTOP);
        group->barrier({.site = "grad norm", .shape = {}});
      },
      RankOptions{.timeout_s = 0.5, .flight_log_folder = std::getenv("CLEAVE_TEST_FOLDER")});
});

/// Ranks pass different dtypes of the same size, which other libraries sum without an error.
const ProcessRole kMixesDtypes("mixes_dtypes", [] {
  return run_rank(*read_environment(), [](World& world) {
    float value = 1;
    const DType dtype = world.rank() == 0 ? DType::kF32 : DType::kI32;
    world.group({0, 1}, "dp")
        ->all_reduce(&value, &value, 1, dtype, ReduceOp::kSum, {.site = "gradients", .shape = {}});
  });
});

const ProcessRole kQuiet("quiet", [] { return 0; });

/// A launcher process: `cleave launch` without its command line.
const ProcessRole kLauncher("launcher", [] {
  const std::string folder = std::getenv("CLEAVE_TEST_FOLDER");
  LaunchOptions options = launch_of_role(std::atoi(std::getenv("CLEAVE_TEST_RANKS")),
                                         std::getenv("CLEAVE_TEST_RANK_ROLE"));
  options.grace_s = 1;
  if (const char* restarts = std::getenv("CLEAVE_TEST_MAX_RESTARTS")) {
    options.max_restarts = std::atoi(restarts);
  }
  const int errors = open((folder + "/stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(errors, STDERR_FILENO);
  return launch(options);
});

// Row R1: the others end within 250 ms and the launcher within 300 ms; exit 137, at most 6 lines.
TEST(Launch, RankKilled_StopsAllAndIsNamed) {
  for (int victim = 0; victim < 4; ++victim) {
    RunningLaunch running("loop", 4);
    const auto begin = Clock::now();
    ASSERT_EQ(kill(running.rank(victim), SIGKILL), 0);
    EXPECT_EQ(running.wait(), 137);
    EXPECT_LT(milliseconds_since(begin), test::limit_ms(300));
    EXPECT_FALSE(running.any_rank_alive());
    const std::string errors = running.errors();
    EXPECT_LE(std::count(errors.begin(), errors.end(), '\n'), 6) << errors;
    EXPECT_THAT(errors, HasSubstr(str("rank ", victim, " (pid ", running.rank(victim),
                                      ") was killed by signal 9 ")));
    EXPECT_THAT(errors, testing::ContainsRegex("all_reduce [0-9]+ on axis tp .*in step [0-9]+"));
    EXPECT_THAT(errors, HasSubstr("resume: cleave train --out out --resume\n"));
  }
}

// Linux before 5.3, as in RHEL 8, has no pidfd_open.
TEST(Launch, KernelWithoutPidfds_RanksEndAndAKilledOneIsNamed) {
  for (const bool is_killed : {true, false}) {
    RunningLaunch running("loop", 3, {"CLEAVE_TEST_WITHOUT_PIDFDS=1"});
    const auto begin = Clock::now();
    is_killed ? (void)kill(running.rank(1), SIGKILL) : running.launcher().send(SIGTERM);
    EXPECT_EQ(running.wait(), is_killed ? 137 : 143);
    EXPECT_LT(milliseconds_since(begin), test::limit_ms(500));
    EXPECT_FALSE(running.any_rank_alive());
    const std::string killed = str("rank 1 (pid ", running.rank(1), ") was killed by signal 9 ");
    EXPECT_EQ(running.errors().find(killed) != std::string::npos, is_killed) << running.errors();
  }
}

TEST(Launch, StoppedRankAndAnotherOneKilled_EndsBoth) {
  RunningLaunch running("loop", 3);
  kill(running.rank(0), SIGSTOP);
  const auto begin = Clock::now();
  kill(running.rank(1), SIGKILL);
  EXPECT_EQ(running.wait(), 137);
  EXPECT_LT(milliseconds_since(begin), test::limit_ms(500));
  EXPECT_FALSE(running.any_rank_alive());
}

// Row R3.
TEST(Launch, LauncherKilled_TakesItsRanksWithIt) {
  for (int round = 0; round < 3; ++round) {
    RunningLaunch running("loop", 3);
    const auto begin = Clock::now();
    running.launcher().send(SIGKILL);
    EXPECT_TRUE(eventually([&] { return !running.any_rank_alive(); }));
    EXPECT_LT(milliseconds_since(begin), test::limit_ms(200));
  }
}

TEST(Launch, RequestToStop_LetsRanksFinishAndKeepTheirCode) {
  std::signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    RunningLaunch running("loop", 2);
    running.launcher().send(signal);
    EXPECT_EQ(running.wait(), 128 + signal);
    EXPECT_FALSE(running.any_rank_alive());
    EXPECT_EQ(running.errors(), "");
  }
}

TEST(Launch, SecondSignal_KillsImmediately) {
  RunningLaunch running("stubborn", 2);
  running.launcher().send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a second Ctrl-C
  EXPECT_TRUE(running.any_rank_alive());
  const auto begin = Clock::now();
  running.launcher().send(SIGINT);
  EXPECT_EQ(running.wait(), 130);
  EXPECT_LT(milliseconds_since(begin), test::limit_ms(200));
  EXPECT_FALSE(running.any_rank_alive());
}

// A shell that ends sends its own SIGHUP, and so does the terminal.
TEST(Launch, SecondHangup_LeavesTheRanksTheirGrace) {
  RunningLaunch running("stubborn", 2);
  const auto begin = Clock::now();
  running.launcher().send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  running.launcher().send(SIGHUP);
  EXPECT_EQ(running.wait(), 143);
  EXPECT_GT(milliseconds_since(begin), 900);
}

// Oracle: POSIX's nohup, under which SIGHUP does not end a program.
TEST(Launch, HangupThatIsIgnored_ReachesNoRankAndStaysIgnoredInThem) {
  const TestFolder folder;
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const LaunchOutcome outcome =
      launch_ranks({.num_ranks = 2,
                    .command = {"sh", "-c", "kill -HUP $PPID $$; echo alive > " + folder / "$RANK"},
                    .environment = {}});
  std::signal(SIGHUP, before);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(read_file(folder / "0"), "alive\n");
  EXPECT_EQ(read_file(folder / "1"), "alive\n");
}

TEST(Launch, RanksThatIgnoreTheSignal_AreKilledAfterTheGrace) {
  RunningLaunch running("stubborn", 2);
  const auto begin = Clock::now();
  running.launcher().send(SIGTERM);
  EXPECT_EQ(running.wait(), 143);
  EXPECT_GT(milliseconds_since(begin), 900);
  EXPECT_LT(milliseconds_since(begin), 1600);
}

TEST(Launch, RankWithAnError_GivesItsCodeAndText) {
  const LaunchOutcome outcome = launch_ranks(launch_of_role(3, "throws"));
  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{6, 9, 6}));
  ASSERT_TRUE(outcome.cause.has_value());
  EXPECT_EQ(outcome.cause->rank, 1);
  EXPECT_EQ(outcome.cause->step, 12);
  // Where the others were does not matter: the failure would come again.
  EXPECT_THAT(outcome.lines, testing::ElementsAre("rank 1: gradient norm is nan"));
}

// Row R14: std::terminate() ends such a process.
TEST(Launch, ExceptionInAThreadOfARank_EndsAllAndNamesIt) {
  const auto begin = Clock::now();
  const LaunchOutcome outcome = launch_ranks(launch_of_role(3, "throws_in_a_thread"));
  EXPECT_LT(milliseconds_since(begin), 3000);
  EXPECT_EQ(outcome.exit_code, 128 + SIGABRT);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{6, 134, 6}));
  ASSERT_FALSE(outcome.lines.empty());
  EXPECT_THAT(outcome.lines.front(), testing::MatchesRegex("rank 1 \\(pid [0-9]+\\) was killed by "
                                                           "signal 6 after barrier 1 on axis dp at "
                                                           "start.*"));
}

TEST(Launch, FailedRankThatTakesLongToEnd_IsStillTheCause) {
  const auto begin = Clock::now();
  const LaunchOutcome outcome = launch_ranks(launch_of_role(2, "ends_slowly"));
  EXPECT_LT(milliseconds_since(begin), 3000);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{6, 137}));
  EXPECT_THAT(outcome.lines, testing::ElementsAre("rank 1: the disk is full",
                                                  testing::StartsWith("rank 0 stopped ")));
}

TEST(Launch, RankWithACodeOfItsOwn_KeepsIt) {
  const LaunchOutcome outcome = launch_ranks(launch_of_role(2, "own_code"));
  EXPECT_EQ(outcome.exit_code, 42);
  ASSERT_FALSE(outcome.lines.empty());
  EXPECT_THAT(outcome.lines.front(), HasSubstr("ended with exit code 42 before it joined"));
}

// Row R7, through the launcher.
TEST(Launch, RanksWithDifferentDtypes_EndWith8AndBothCalls) {
  const LaunchOutcome outcome = launch_ranks(launch_of_role(2, "mixes_dtypes"));
  EXPECT_EQ(outcome.exit_code, 8);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{8, 8}));
  ASSERT_FALSE(outcome.lines.empty());
  EXPECT_THAT(outcome.lines.front(),
              HasSubstr("rank 0 calls all_reduce 1 (sum, fp32, count 1, shape [], at gradients); "
                        "rank 1 calls all_reduce 1 (sum, int32, count 1, shape [], at gradients)"));
}

// Row R5: a stopped rank is detected and named at the limit, and all ranks end soon after.
TEST(Launch, StoppedRank_IsNamedAtTheTimeoutWithAFlightLog) {
  const TestFolder folder;
  LaunchOptions options = launch_of_role(3, "hangs");
  options.environment.push_back("CLEAVE_TEST_FOLDER=" + folder / "");
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.exit_codes[2], 137);
  const std::string text = outcome.lines.front();
  EXPECT_THAT(text, HasSubstr("waits in barrier 2 on axis tp at grad norm for rank 2; rank 2 is "
                              "after barrier 1 on axis tp at start; flight log: "));
  const FlightLog log = read_flight_log(text.substr(text.find("flight log: ") + 12));
  EXPECT_THAT(stuck_ranks(log), testing::ElementsAre(2));
  EXPECT_EQ(describe_place(log, log.ranks[2]), "after barrier 1 on axis tp at start");
  EXPECT_EQ(describe_place(log, log.ranks[0]), "in barrier 2 on axis tp at grad norm");
}

TEST(Launch, ProgramWithoutRanks_JustEndsWell) {
  const LaunchOutcome outcome = launch_ranks(launch_of_role(3, "quiet"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0, 0}));
  EXPECT_TRUE(outcome.lines.empty());
}

TEST(Launch, ImpossibleStarts_AreRefused) {
  const auto code_of = [](const LaunchOptions& options) {
    try {
      launch_ranks(options);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kBug;
  };
  EXPECT_EQ(code_of({.num_ranks = 0, .command = {"true"}, .environment = {}}), Code::kUsage);
  EXPECT_EQ(code_of({.num_ranks = 1, .command = {"no-such-program"}, .environment = {}}),
            Code::kUsage);
  EXPECT_EQ(code_of({.num_ranks = 1, .command = {"/etc/passwd"}, .environment = {}}), Code::kUsage);
  EXPECT_EQ(code_of({.num_ranks = 1, .command = {}, .environment = {}}), Code::kUsage);
}

TEST(Launch, EveryRank_SeesItsPlaceInTheEnvironment) {
  const TestFolder folder;
  const LaunchOutcome outcome = launch_ranks(
      {.num_ranks = 2,
       .command = {"sh", "-c",
                   "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR > " +
                       folder / "$RANK"},
       .environment = {}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(read_file(folder / "0"), "0 2 0 2 127.0.0.1\n");
  EXPECT_EQ(read_file(folder / "1"), "1 2 1 2 127.0.0.1\n");
}

// Roles and tests of --max-restarts.

const ProcessRole kFailsTwice("fails_twice", [] {
  const Environment environment = *read_environment();
  std::ofstream(std::string(std::getenv("CLEAVE_TEST_FOLDER")) + "/starts", std::ios::app)
      << environment.num_restarts;
  return run_rank(environment, [&](World& world) {
    world.note_step(4);
    if (environment.num_restarts < 2) raise(SIGKILL);
  });
});

const ProcessRole kAlwaysThrows("always_throws", [] {
  return run_rank(*read_environment(), [](World&) {
    throw Error(static_cast<Code>(std::atoi(std::getenv("CLEAVE_TEST_CODE"))), "as asked");
  });
});

/// A launch() of `role` on one rank; what it printed goes to `errors`.
int launch_with_restarts(const std::string& role, int max_restarts, const TestFolder& folder,
                         std::string* errors, const std::string& code = "0") {
  LaunchOptions options = launch_of_role(1, role);
  options.environment.push_back("CLEAVE_TEST_FOLDER=" + folder / "");
  options.environment.push_back("CLEAVE_TEST_CODE=" + code);
  options.max_restarts = max_restarts;
  testing::internal::CaptureStderr();
  const int exit_code = launch(options);
  *errors = testing::internal::GetCapturedStderr();
  return exit_code;
}

TEST(Restart, RankThatIsKilledTwice_EndsWellTheThirdTime) {
  const TestFolder folder;
  std::string errors;
  EXPECT_EQ(launch_with_restarts("fails_twice", 3, folder, &errors), 0);
  EXPECT_EQ(read_file(folder / "starts"), "012");
  EXPECT_THAT(errors, testing::MatchesRegex(
                          "cleave: restart 1 of 3: rank 0 \\(pid [0-9]+\\) was killed by signal 9 "
                          "before its first operation in step 4\n"
                          "cleave: restart 2 of 3: rank 0 [^\n]*\n"));
}

TEST(Restart, MoreFailuresThanRestarts_GiveUpWithTheCausesCode) {
  const TestFolder folder;
  std::string errors;
  EXPECT_EQ(launch_with_restarts("fails_twice", 1, folder, &errors), 137);
  EXPECT_EQ(read_file(folder / "starts"), "01");
  EXPECT_THAT(errors, HasSubstr("cleave: gave up after 1 restart\n"));
  EXPECT_EQ(launch_with_restarts("always_throws", 2, folder, &errors, "5"), 5);
  EXPECT_THAT(errors, HasSubstr("restart 2 of 2: rank 0: as asked\n"));
  EXPECT_THAT(errors, HasSubstr("gave up after 2 restarts\n"));
}

TEST(Restart, PermanentFailure_IsNotRetried) {
  for (const char* code : {"2", "3", "4", "9"}) {
    const TestFolder folder;
    std::string errors;
    EXPECT_EQ(launch_with_restarts("always_throws", 5, folder, &errors, code), std::atoi(code));
    EXPECT_EQ(
        errors,
        "cleave: rank 0: as asked\ncleave: not restarted: a restart would fail in the same way\n");
  }
}

TEST(Restart, JobThatIsAskedToStop_IsNotStartedAgain) {
  RunningLaunch running("loop", 2, {"CLEAVE_TEST_MAX_RESTARTS=5"});
  running.launcher().send(SIGTERM);
  EXPECT_EQ(running.wait(), 143);
  EXPECT_EQ(running.errors(), "");
}

const ProcessRole kStopsAtItsEnd("stops_at_its_end", [] {
  const int code = run_rank(*read_environment(), [](World& world) {
    world.group({0, 1}, "dp")->barrier({.site = "all", .shape = {}});
  });
  if (read_environment()->rank == 1) raise(SIGSTOP);
  return code;
});

// Found by cleave-fault: the launcher waited for it forever.
TEST(Launch, RankThatIsStoppedWhenAllIsDone_IsATimeout) {
  LaunchOptions options = launch_of_role(2, "stops_at_its_end");
  options.stopped_limit_s = 0.3;
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 7);
  ASSERT_FALSE(outcome.lines.empty());
  EXPECT_THAT(outcome.lines.front(), HasSubstr(") is stopped, and other ranks have ended"));
}

// Found by cleave-fault: a rank that could not start a thread reported a bug.
TEST(AsError, ThreadThatCannotStart_IsAMatterOfMemory) {
  const auto code_of = [](std::errc problem) {
    return as_error(std::make_exception_ptr(std::system_error(std::make_error_code(problem))))
        .code();
  };
  EXPECT_EQ(code_of(std::errc::resource_unavailable_try_again), Code::kMemory);
  EXPECT_EQ(code_of(std::errc::not_enough_memory), Code::kMemory);
  EXPECT_EQ(code_of(std::errc::invalid_argument), Code::kBug);
}

TEST(AsError, FileSystem_HasPathAndReason) {
  const auto text_of = [](std::errc problem, const std::filesystem::path& path) {
    return std::string(as_error(std::make_exception_ptr(std::filesystem::filesystem_error(
                                    "status", path, std::make_error_code(problem))))
                           .what());
  };
  EXPECT_EQ(text_of(std::errc::permission_denied, "a/b"),
            "a/b: Permission denied; change the permissions of it, or of a folder above it "
            "(chmod)");
  EXPECT_EQ(text_of(std::errc::too_many_symbolic_link_levels, "a"),
            "a: Too many levels of symbolic links");
  EXPECT_EQ(text_of(std::errc::permission_denied, ""),
            "filesystem error: status: Permission denied []");
}

TEST(AsError, WhatOtherLibrariesThrow_IsKnownByItsText) {
  const auto error_of = [](const auto& thrown) {
    return as_error(std::make_exception_ptr(thrown));
  };
  for (const char* text :
       {"DefaultCPUAllocator: can't allocate memory: you tried 8 bytes. Error 12",
        "CUDA out of memory\nframe #0"}) {
    const Error error = error_of(std::runtime_error(text));
    EXPECT_EQ(error.code(), Code::kMemory);
    EXPECT_THAT(error.what(), testing::MatchesRegex("out of memory \\([^.\n]*memory[^.\n]*\\)"));
  }
  EXPECT_EQ(error_of(std::bad_alloc()).code(), Code::kMemory);
  EXPECT_EQ(error_of(std::runtime_error("memory")).code(), Code::kBug);
  EXPECT_EQ(error_of(7).code(), Code::kBug);
  EXPECT_EQ(error_of(Error(Code::kDesync, "x")).code(), Code::kDesync);
}

// The texts are those of libtorch 2.13 and the CUDA runtime.
TEST(AsError, OfAGpu_KeepsTheSizesOrTellsHowToFindTheCause) {
  const auto error_of = [](const char* text) {
    return as_error(std::make_exception_ptr(std::runtime_error(text)));
  };
  const Error full = error_of(
      "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of "
      "which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.80 GiB memory in "
      "use. Of the allocated memory 70.00 GiB is allocated by PyTorch.\nException raised from x");
  EXPECT_EQ(full.code(), Code::kMemory);
  EXPECT_STREQ(full.what(),
               "out of memory (Tried to allocate 2.50 GiB. GPU 0 has a total "
               "capacity of 79.11 GiB of which 1.25 GiB is free)");
  const Error failed = error_of(
      "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
      "asynchronously reported at some other API call");
  EXPECT_EQ(failed.code(), Code::kBug);
  EXPECT_STREQ(failed.what(),
               "the device failed: CUDA error: an illegal memory access was encountered; to see in "
               "which operation, set CUDA_LAUNCH_BLOCKING=1");
}

// Found by cleave-fault: a folder that could not be opened for lack of descriptors was reported as
// a bug.
TEST(AsError, FolderThatCannotBeOpened_IsAFileOperationsError) {
  try {
    (void)std::filesystem::directory_iterator("/no/such/folder");
    ADD_FAILURE();
  } catch (...) {
    const Error error = as_error(std::current_exception());
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), HasSubstr("/no/such/folder"));
  }
}

}  // namespace
}  // namespace cleave::launch_test
