#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/planner/options.h"
#include "tests/support/temp_folder.h"
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

// Oracle: the same length as a flag.
TEST(PlanCommand, WithoutSeqLen_ModelOfFewPositionsHasAsManyTokens) {
  const test::TempFolder folder;
  std::ofstream(folder / "config.json")
      << R"({"architectures":["BertForMaskedLM"],"model_type":"bert","vocab_size":100,)"
      << R"("hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,)"
      << R"("intermediate_size":64,"max_position_embeddings":64})";
  const auto memory = [&](int64_t seq_len) {
    PlanOptions o;
    o.model = folder / "config.json";
    o.seq_len = seq_len;
    o.json = true;
    testing::internal::CaptureStdout();
    cleave_plan(o);
    return nlohmann::json::parse(testing::internal::GetCapturedStdout()).at("ranks");
  };
  EXPECT_EQ(memory(0), memory(64));
  EXPECT_NE(memory(0), memory(32));
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
