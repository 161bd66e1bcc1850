#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/planner/options.h"
#include "tests/support/thrown.h"

namespace cleave::plan_command_test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string printed(int tp) {
  PlanOptions o;
  o.model = "bert-tiny";
  o.vocab_size = 100;
  o.seq_len = 16;
  o.tp = tp;
  testing::internal::CaptureStdout();
  cleave_plan(o);
  return testing::internal::GetCapturedStdout();
}

TEST(PlanCommand, TimeOfCollectives_IsThereWhereRanksCommunicate) {
  EXPECT_THAT(printed(2), HasSubstr(", collectives "));
  const std::string alone = printed(1);
  EXPECT_THAT(alone, HasSubstr(" a step: matrix products "));
  EXPECT_THAT(alone, Not(HasSubstr("collectives")));
}

TEST(PlanCommand, LengthBeyondTheTableOfPositions_IsRefusedWithoutAWarning) {
  PlanOptions o;
  o.model = "bert-tiny";
  o.vocab_size = 100;
  o.seq_len = 4096;
  testing::internal::CaptureStderr();
  EXPECT_THAT(test::thrown_by([&] { cleave_plan(o); }).what(),
              HasSubstr("max_position_embeddings="));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(PlanCommand, MemoryThatIsNoSize_IsRefusedBeforeAnyWork) {
  for (const char* memory : {"abc", "9223372036854775808"}) {
    PlanOptions o;
    o.model = "no such model, which is read first of all work";
    o.memory = memory;
    EXPECT_THAT(test::thrown_by([&] { cleave_plan(o); }).what(), HasSubstr("--memory")) << memory;
  }
}

}  // namespace
}  // namespace cleave::plan_command_test
