// Faults that only a mutant can produce, which the program itself must detect. CMakeLists.txt
// enables the mutant of each test.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/launch/child_process.h"
#include "cleave/train/setup.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::ContainsRegex;
using testing::HasSubstr;

// Row R12: a NaN in the gradient of one rank.
TEST(TrainFault, GradientThatIsNotFiniteOnOneRank_StopsAllBeforeTheStep) {
  const TempFolder folder;
  std::ofstream(folder / "small.json")
      << R"({"model_type": "llama", "vocab_size": 257, "hidden_size": 24, "intermediate_size": 40,
             "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
             "head_dim": 4, "max_position_embeddings": 64, "tie_word_embeddings": false})";
  std::ofstream(folder / "text") << std::string(4000, 'x');
  TrainOptions o;
  o.model = folder / "small.json";
  o.data = {folder / "text"};
  o.out = folder / "run";
  o.tp = 2;
  o.seq_len = 32;
  o.batch_size = 8;
  o.steps = 4;
  o.save_every = 1;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  const Error error = thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kNumerics);
  EXPECT_THAT(error.what(), ContainsRegex("the gradient of [a-z0-9_.]+ is not finite in step 2 on "
                                          "rank 1; no weight was changed"));
  EXPECT_EQ(newest_checkpoint(o.out), std::filesystem::path(o.out) / "step_00000001");
}

// Found by cleave-fault: the launcher waited forever for a rank that was stopped this early.
TEST(ChildProcess, StoppedBeforeItsProgramBegins_IsATimeout) {
  const Error error = thrown_by([] {
    const ChildProcess child({.command = {"true"}, .environment = {}, .start_limit_s = 0.2});
  });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr(") did not start; it was stopped"));
}

}  // namespace
}  // namespace cleave
