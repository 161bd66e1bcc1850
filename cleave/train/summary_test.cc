#include "cleave/train/summary.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/train/options.h"
#include "tests/support/temp_folder.h"

namespace cleave::summary_test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// What a run of one step prints.
std::string printed(int tp) {
  const test::TempFolder folder;
  std::ofstream(folder / "tiny.json")
      << R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,
  "max_position_embeddings":32})";
  std::ofstream(folder / "text.txt") << std::string(100, 'a');
  TrainOptions o;
  o.model = folder / "tiny.json";
  o.data = {folder / "text.txt"};
  o.out = folder / "run";
  o.tp = tp;
  o.seq_len = 8;
  o.batch_size = 4;
  o.steps = 1;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  testing::internal::CaptureStdout();
  cleave_train(o);
  return testing::internal::GetCapturedStdout();
}

TEST(RunHeader, TimeOfCommunication_IsThereWhereRanksCommunicate) {
  EXPECT_THAT(printed(2), HasSubstr(", collectives "));
  const std::string alone = printed(1);
  EXPECT_THAT(alone, HasSubstr(" per step (matrix products "));
  EXPECT_THAT(alone, Not(HasSubstr("collectives")));
}

TEST(RunHeader, TimeOnGpus_IsAtLeastWhatIsKnown) {
  const StepTime time{.kinds = {0.75, 0.5, 0, 0, 0}};
  Machine machine;
  const std::string rest = "1.2s per step (matrix products 750ms, attention 500ms)";
  EXPECT_EQ(time_line(time, machine), "time    at least " + rest);
  machine.num_cpus = 2;
  EXPECT_EQ(time_line(time, machine), "time    about " + rest);
}

}  // namespace
}  // namespace cleave::summary_test
