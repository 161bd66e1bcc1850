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

/// A run of one step with new weights, in `folder`.
TrainOptions one_step(const test::TempFolder& folder) {
  std::ofstream(folder / "tiny.json")
      << R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,
  "max_position_embeddings":32})";
  std::ofstream(folder / "text.txt") << std::string(100, 'a');
  TrainOptions o;
  o.model = folder / "tiny.json";
  o.data = {folder / "text.txt"};
  o.out = folder / "run";
  o.seq_len = 8;
  o.batch_size = 4;
  o.steps = 1;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

std::string printed(const TrainOptions& o) {
  testing::internal::CaptureStdout();
  cleave_train(o);
  return testing::internal::GetCapturedStdout();
}

TEST(RunHeader, TimeOfCommunication_IsThereWhereRanksCommunicate) {
  const test::TempFolder two, one;
  TrainOptions o = one_step(two);
  o.tp = 2;
  EXPECT_THAT(printed(o), HasSubstr(", collectives "));
  const std::string alone = printed(one_step(one));
  EXPECT_THAT(alone, HasSubstr(" per step (matrix products "));
  EXPECT_THAT(alone, Not(HasSubstr("collectives")));
}

// The forecast is of a step of 8 tokens a sequence, where most steps have 3.
TEST(RunHeader, TimeOfSequencesWithTheirOwnLengths_IsThatOfTheLongest) {
  const test::TempFolder text, rows;
  const std::string words = "), for the longest sequences\n";
  EXPECT_THAT(printed(one_step(text)), Not(HasSubstr(words)));
  TrainOptions o = one_step(rows);
  std::ofstream(rows / "rows.jsonl") << R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}
{"input_ids": [1, 2, 3]}
)";
  o.data = {rows / "rows.jsonl"};
  EXPECT_THAT(printed(o), HasSubstr(words));
}

// A preset may have the name of a published model, but none of its weights.
TEST(RunHeader, OnlyWeightsOfAPresetOrConfig_AreCalledNew) {
  const test::TempFolder folder;
  TrainOptions o = one_step(folder);
  EXPECT_THAT(printed(o), HasSubstr("tiny.json: 12.7k new weights, "));
  o.model = o.out;
  o.out = folder / "tuned";
  EXPECT_THAT(printed(o), HasSubstr("run: 12.7k weights, "));
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
