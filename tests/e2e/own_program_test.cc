#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

// A user's own program that throws ends as cleave does: one line with rank and cause, and the exit
// code of the failure's kind (docs/installing.md).
namespace cleave {
namespace {

using test::Ran;
using testing::HasSubstr;
using testing::StartsWith;

Ran launched(const std::string& what) {
  return test::run_cleave({"launch", "-n", "2", "--", CLEAVE_OWN_PROGRAM, what});
}

Ran alone(const std::string& what) {
  return test::run_program({CLEAVE_OWN_PROGRAM, what});
}

TEST(OwnProgram, ThatThrowsNothing_EndsWell) {
  for (const Ran& ran : {launched(""), alone("")}) {
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
  }
}

TEST(OwnProgram, ErrorThatNobodyCatches_IsOneLineWithRankAndCauseAndItsExitCode) {
  const Ran ran = launched("error");
  EXPECT_EQ(ran.exit_code, 9);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: the loss is nan\n"));
  EXPECT_THAT(ran.err, Not(HasSubstr("terminate called")));
  EXPECT_THAT(ran.out, HasSubstr("rank 1 works\n"));  // what was printed before is not lost

  const Ran threads = alone("error");
  EXPECT_EQ(threads.exit_code, 9);
  EXPECT_EQ(threads.err, "cleave: the loss is nan\n");
}

TEST(OwnProgram, OtherExceptionThatNobodyCatches_IsOneLineToo) {
  const Ran ran = launched("exception");
  EXPECT_EQ(ran.exit_code, 70);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: no more rows\n"));
  const Ran threads = alone("exception");
  EXPECT_EQ(threads.exit_code, 70);
  EXPECT_EQ(threads.err, "cleave: no more rows\n");
}

TEST(OwnProgram, ErrorInAThreadOfItsOwn_EndsAllRanksWithItsCode) {
  const Ran ran = launched("thread");
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_THAT(ran.err, StartsWith("cleave: rank 1: the reader stopped\n"));
}

TEST(OwnProgram, ErrorInMainBeforeTheJob_IsPrintedOnce) {
  const Ran ran = launched("flag");
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, testing::MatchesRegex("cleave: rank [01]: --rows has no value\n"));
  const Ran one = alone("flag");
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_EQ(one.err, "cleave: --rows has no value\n");
}

}  // namespace
}  // namespace cleave
