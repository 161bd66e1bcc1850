#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

// A user's program that throws ends like cleave: one line with rank and cause, and the exit code of
// the failure (docs/library.md).
namespace cleave {
namespace {

using test::RunResult;
using testing::HasSubstr;
using testing::StartsWith;

RunResult launched(const std::string& what) {
  return test::run_cleave({"launch", "-n", "2", "--", CLEAVE_OWN_PROGRAM, what});
}

RunResult alone(const std::string& what) {
  return test::run_program({CLEAVE_OWN_PROGRAM, what});
}

TEST(OwnProgram, ThatThrowsNothing_EndsWell) {
  for (const RunResult& ran : {launched(""), alone("")}) {
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
  }
}

TEST(OwnProgram, WithTwoJobs_RunsBoth) {
  for (const RunResult& ran : {launched("twice"), alone("twice")}) {
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    const std::string line = "rank 1 works\n";
    const size_t first = ran.out.find(line);
    ASSERT_NE(first, std::string::npos);
    EXPECT_NE(ran.out.find(line, first + 1), std::string::npos) << ran.out;
  }
  const RunResult failed = launched("second");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.err, HasSubstr("rank 1: the loss is nan\n"));
}

TEST(OwnProgram, UncaughtError_IsOneLineWithRankAndCauseAndItsExitCode) {
  const RunResult ran = launched("error");
  EXPECT_EQ(ran.exit_code, 9);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: the loss is nan\n"));
  EXPECT_THAT(ran.err, Not(HasSubstr("terminate called")));
  EXPECT_THAT(ran.out, HasSubstr("rank 1 works\n"));  // earlier output is not lost

  const RunResult threads = alone("error");
  EXPECT_EQ(threads.exit_code, 9);
  EXPECT_EQ(threads.err, "cleave: the loss is nan\n");
}

TEST(OwnProgram, OtherUncaughtException_IsOneLineToo) {
  const RunResult ran = launched("exception");
  EXPECT_EQ(ran.exit_code, 70);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: no more rows\n"));
  const RunResult threads = alone("exception");
  EXPECT_EQ(threads.exit_code, 70);
  EXPECT_EQ(threads.err, "cleave: no more rows\n");
}

TEST(OwnProgram, ErrorInAnotherThread_EndsAllRanksWithItsCode) {
  const RunResult ran = launched("thread");
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: the reader stopped\n"));
}

TEST(OwnProgram, ErrorInMainBeforeTheJob_IsPrintedOnce) {
  const RunResult ran = launched("flag");
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, testing::MatchesRegex("cleave: rank [01]: --rows has no value\n"));
  const RunResult one = alone("flag");
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_EQ(one.err, "cleave: --rows has no value\n");
}

}  // namespace
}  // namespace cleave
