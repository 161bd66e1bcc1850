// Invalid layouts, values that are not finite, damaged checkpoints.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/train/setup.h"
#include "tests/support/level.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::fault_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

constexpr int64_t kHeads = 6, kLayers = 2;

TrainOptions small_run(const std::string& root) {
  const nlohmann::ordered_json config = {{"model_type", "llama"},
                                         {"vocab_size", 257},
                                         {"hidden_size", 24},
                                         {"intermediate_size", 40},
                                         {"num_hidden_layers", kLayers},
                                         {"num_attention_heads", kHeads},
                                         {"num_key_value_heads", 2},
                                         {"head_dim", 4},
                                         {"max_position_embeddings", 64},
                                         {"tie_word_embeddings", false}};
  std::ofstream(root + "/small.json") << config.dump();
  std::ofstream(root + "/text") << std::string(4000, 'x');
  TrainOptions o;
  o.model = root + "/small.json";
  o.data = {root + "/text"};
  o.out = root + "/run";
  o.seq_len = 32;
  o.batch_size = 8;
  o.steps = 4;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

// Row R11: invalid layouts are refused in at most 100 ms, before any rank starts, with a message
// that names valid sizes. Valid layouts are accepted. Oracle: the sizes themselves.
TEST(TrainFault, RandomLayouts_AreAcceptedExactlyWhenValid) {
  const TempFolder folder;
  TrainOptions o = small_run(folder.path());
  std::mt19937_64 random(11);
  const auto up_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  };
  (void)make_setup(o, 0);  // fills the token cache
  int num_refused = 0, num_accepted = 0;
  test::Times times;
  for (int i = 0; i < 200; ++i) {
    o.tp = up_to(9);
    o.pp = up_to(3);
    o.dp = up_to(10);
    o.virtual_pipeline = up_to(2);
    o.zero = static_cast<int>(random() % 2);
    o.fsdp = random() % 3 == 0;
    const int ranks = o.tp * o.pp * o.dp;
    const int world = random() % 2 == 0 ? 0 : random() % 2 == 0 ? ranks : ranks + 1;
    const bool is_valid = o.tp <= kHeads && o.pp * o.virtual_pipeline <= kLayers &&
                          o.dp <= o.batch_size && !(o.zero == 1 && o.fsdp) &&
                          (world == 0 || world == ranks);
    SCOPED_TRACE(str("tp ", o.tp, ", pp ", o.pp, ", dp ", o.dp, ", virtual ", o.virtual_pipeline,
                     ", zero ", o.zero, ", fsdp ", o.fsdp, ", world ", world));
    const auto begin = std::chrono::steady_clock::now();
    try {
      (void)make_setup(o, world);
      EXPECT_TRUE(is_valid);
      ++num_accepted;
    } catch (const Error& error) {
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      times.add(took.count());
      EXPECT_FALSE(is_valid) << error.what();
      EXPECT_TRUE(error.code() == Code::kShape || error.code() == Code::kUsage) << error.what();
      EXPECT_THAT(error.what(), testing::ContainsRegex("choose|give|needs|less than|fewer"));
      ++num_refused;
    }
    EXPECT_FALSE(std::filesystem::exists(o.out + "/metrics.jsonl"));
  }
  EXPECT_GT(num_accepted, 10);
  EXPECT_GT(num_refused, 100);
  EXPECT_LT(times.judged(), 100);
  test::note_measured("R11 ", num_refused, " of 200 random layouts refused, ", times.text());
}

// Row R12: a NaN in one rank's shard of one weight.
TEST(TrainFault, WeightThatIsNotFinite_IsReportedWithItsRankAndNothingIsSaved) {
  const TempFolder folder;
  const std::string root = folder.path();
  TrainOptions o = small_run(root);
  run_ranks(1, [&](World&) {
    auto model = make_model(Json::parse_file(o.model));
    materialize(*model, {.seed = 5});
    for (const auto& p : model->parameters()) {
      // Columnwise: rank 1 holds the last row.
      if (p->name() == "model.layers.1.mlp.up_proj.weight") {
        const at::NoGradGuard no_grad;
        p->leaf().index({-1, 3}).fill_(std::numeric_limits<float>::quiet_NaN());
      }
    }
    Checkpoint checkpoint;
    checkpoint.model = model.get();
    checkpoint.files = byte_tokenizer_files();
    save_checkpoint(root + "/model", checkpoint, {});
  });
  o.model = root + "/model";
  o.tp = 2;
  o.save_every = 1;
  const Error error = thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kNumerics);
  EXPECT_THAT(error.what(),
              HasSubstr("the weight model.layers.1.mlp.up_proj.weight is not finite on "
                        "rank 1, and the loss is nan in step 1"));
  EXPECT_FALSE(newest_checkpoint(o.out));
}

// A run that the launcher restarts resumes from the newest intact checkpoint.
TEST(TrainFault, RestartAfterDamage_ResumesFromTheNewestIntactCheckpoint) {
  const TempFolder folder;
  TrainOptions o = small_run(folder.path());
  o.save_every = 1;
  cleave_train(o);
  const std::filesystem::path run = o.out, newest = run / "step_00000004";
  {
    std::fstream file(newest / "model.safetensors", std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  const auto whole = newest_intact_checkpoint(run);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->path, run / "step_00000003");
  ASSERT_EQ(whole->damage.size(), 1U);
  EXPECT_THAT(whole->damage[0], HasSubstr("step_00000004 is damaged: "));
  const Axis one;
  RunFolder(run, {one, one, one}).go_back_to(whole->path, ".damaged");
  EXPECT_EQ(newest_checkpoint(run), run / "step_00000003");
  EXPECT_TRUE(std::filesystem::exists(run / "step_00000004.damaged"));
  EXPECT_EQ(list_checkpoints(run).size(), 3U);
}

TEST(TrainFault, FolderWithOnlyDamagedCheckpoints_IsRefusedAndAnEmptyOneIsNot) {
  const TempFolder folder;
  EXPECT_FALSE(newest_intact_checkpoint(folder / "nothing").has_value());
  TrainOptions o = small_run(folder.path());
  cleave_train(o);
  std::filesystem::resize_file(o.out + "/step_00000004/model.safetensors", 100);
  const Error error = thrown_by([&] { (void)newest_intact_checkpoint(o.out); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("no checkpoint is intact: "));
}

}  // namespace
}  // namespace cleave::fault_test
