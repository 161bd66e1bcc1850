// `cleave launch` on one host.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace cleave::test {
namespace {

using testing::HasSubstr;

TEST(Launch, ProgramAndItsFlags_ReachEveryRank) {
  const RunResult ran = run_cleave(
      {"launch", "-n", "2", "--", "/bin/bash", "-c", "echo $RANK/$WORLD_SIZE $1", "x", "--help"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("0/2 --help\n"));
  EXPECT_THAT(ran.out, HasSubstr("1/2 --help\n"));
}

// For programs with PyTorch's TCPStore: all ranks get the same free port.
TEST(Launch, MasterPort_IsFree) {
  const RunResult ran =
      run_cleave({"launch", "-n", "2", "--", "/bin/bash", "-c", "echo port $MASTER_PORT"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const size_t end = ran.out.find('\n');
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(ran.out, ran.out.substr(0, end + 1) + ran.out.substr(0, end + 1));
  EXPECT_GT(std::stoi(ran.out.substr(5)), 1023);
}

TEST(Launch, RankThatFails_GivesItsExitCode) {
  const RunResult ran = run_cleave({"launch", "-n", "2", "/bin/bash", "-c", "exit $((RANK * 9))"});
  EXPECT_EQ(ran.exit_code, 9);
  EXPECT_THAT(ran.err, HasSubstr("rank 1"));
}

// Daemons ignore SIGCHLD, and hand that down: a launcher would wait for its ranks for ever.
TEST(Launch, EndOfChildrenIsIgnored_ExitCodesArrive) {
  const RunResult ran = run_program({"/usr/bin/timeout", "20", "/usr/bin/perl", "-e",
                                     "$SIG{CHLD} = 'IGNORE'; exec @ARGV", test::program(), "launch",
                                     "-n", "2", "/bin/bash", "-c", "exit $((RANK * 9))"});
  EXPECT_EQ(ran.exit_code, 9) << ran.err;
}

TEST(Launch, WithoutProc_ExitCodesArrive) {
  const RunResult ran =
      run_program({"/usr/bin/env", "unshare", "-m", "sh", "-c",
                   "mount -t tmpfs none /proc || exit 77; exec \"$@\"", "sh", test::program(),
                   "launch", "-n", "2", "/bin/bash", "-c", "exit $((RANK * 9))"});
  if (ran.exit_code == 77 || ran.err.find("unshare") != std::string::npos) {
    GTEST_SKIP() << "needs the right to mount a file system";
  }
  EXPECT_EQ(ran.exit_code, 9) << ran.err;
}

TEST(Launch, CommandInPlaceOfAProgram_IsRefusedWithTheCommandLineThatIsMeant) {
  const std::string program = test::program();
  const RunResult ran = run_cleave({"launch", "-n", "2", "--", "train", "--data", "my text.txt"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: train is a command of cleave, not a program; did you mean " +
                         program + " launch -n 2 -- " + program + " train --data 'my text.txt'\n");
  // The name of a system's program too: it would run once per rank, without a job.
  EXPECT_EQ(run_cleave({"launch", "-n", "2", "diff", "a", "b"}).exit_code, 2);
}

TEST(Launch, FlagOfMpirun_IsNotANumberOfRanks) {
  EXPECT_EQ(run_cleave({"launch", "-np", "2", "--", "true"}).err,
            "cleave: unknown flag -np; did you mean -n\n");
  EXPECT_EQ(run_cleave({"launch", "-n2", "--", "true"}).exit_code, 0);
}

TEST(Launch, WrongSizes_AreReportedOnceForAllRanks) {
  const RunResult ran =
      run_cleave({"launch", "-n", "3", "--", test::program(), "train", "--tp", "2", "--data",
                  test::source_file("LICENSE"), "--out", "never-made"});
  EXPECT_EQ(ran.exit_code, 3);
  const std::string text =
      "--tp 2 x --dp 1 is 2 ranks, but the launcher started 3; make them equal, or omit --tp\n";
  ASSERT_TRUE(ran.err.starts_with("cleave: rank ")) << ran.err;
  EXPECT_EQ(ran.err.substr(std::string("cleave: rank 0: ").size()), text);
}

}  // namespace
}  // namespace cleave::test
