#include "tutorial.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "squad.h"
#include "tests/support/oslo_models.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace gpt2_squad {
namespace {

namespace fs = std::filesystem;
using cleave::Json;
using cleave::World;
using testing::HasSubstr;

std::string model_folder() {
  return cleave::test::data_folder() + "/models/gpt2-shakespeare";
}

std::vector<std::string> contexts() {
  return read_contexts(cleave::test::data_folder() + "/text/squad/squad-v1.1-dev-part.json");
}

TutorialOptions options_of(int tp) {
  return {.model = model_folder(), .config = cleave::test::config_of(tp), .output_dir = ""};
}

std::vector<Step> run(const TutorialOptions& options, int num_ranks) {
  std::vector<Step> steps;
  const auto texts = contexts();
  cleave::test::on_world(num_ranks, [&](World& world) {
    const auto mine = train(world, options, texts);
    if (world.rank() == 0) steps = mine;
  });
  return steps;
}

// Oracle: the same loop in PyTorch with transformers and torch.optim.Adam.
TEST(RealGpt2Squad, OnAnyNumberOfRanks_GivesPyTorchsLossesAndNorms) {
  CLEAVE_NEEDS_DATA();
  const Json golden =
      Json::parse_file(cleave::test::data_folder() + "/goldens/training/gpt2-squad.json");
  for (const int tp : {1, 2, 3}) {
    TutorialOptions o = options_of(tp);
    o.train_step = golden.at("steps").as_int();
    o.batch_size = golden.at("batch").as_int();
    o.seq_len = golden.at("seq_len").as_int();
    o.lr = 3e-4;
    o.shuffle = false;
    o.learns_padding = true;
    const auto steps = run(o, tp);
    ASSERT_EQ(steps.size(), golden.at("losses").size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i].loss_with_padding, golden.at("losses").at(i).as_number(), 1e-4)
          << "tp " << tp << " step " << i;
      const double norm = golden.at("grad_norms").at(i).as_number();
      EXPECT_NEAR(steps[i].grad_norm, norm, 1e-4 * norm) << "tp " << tp << " step " << i;
    }
  }
}

TEST(RealGpt2Squad, FirstBatch_IsTheTutorials) {
  CLEAVE_NEEDS_DATA();
  const Json golden =
      Json::parse_file(cleave::test::data_folder() + "/goldens/training/gpt2-squad.json");
  const auto tokenizer = cleave::load_tokenizer(model_folder());
  const auto all = contexts();
  const auto batch = batch_of(*tokenizer, {all.begin(), all.begin() + 4}, {});
  const Json rows = golden.at("first_batch_ids");
  ASSERT_EQ(batch.ids.size(0), 4);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(batch.ids[static_cast<int64_t>(r)][static_cast<int64_t>(i)].item<int64_t>(),
                rows.at(r).at(i).as_int());
    }
  }
}

TEST(RealGpt2Squad, Padding_IsTheEndTokenAndCountsOnlyIfRequested) {
  CLEAVE_NEEDS_DATA();
  const auto tokenizer = cleave::load_tokenizer(model_folder());
  const int64_t eos = tokenizer->special().eos.value();
  const std::vector<std::string> texts = {"To be, or not to be, that is the question", "To be"};
  const auto batch = batch_of(*tokenizer, texts, {});
  const auto learnt = batch_of(*tokenizer, texts, {.learns_padding = true});
  const auto length = static_cast<int64_t>(tokenizer->encode(texts[1]).size());
  const int64_t rest = batch.ids.size(1) - length;
  ASSERT_GT(rest, 2);
  EXPECT_TRUE(batch.ids[1].narrow(0, length, rest).eq(eos).all().item<bool>());
  EXPECT_TRUE(batch.labels[1].narrow(0, length, rest).eq(-100).all().item<bool>());
  EXPECT_EQ(batch.attention_mask.sum(1)[1].item<int64_t>(), length);
  EXPECT_TRUE(at::equal(learnt.labels, learnt.ids));
  EXPECT_TRUE(at::equal(learnt.ids, batch.ids));
}

TEST(Gpt2Squad, FileWithoutContexts_IsNamedWithThePlace) {
  const cleave::test::TempFolder folder;
  std::ofstream(folder / "x.json") << R"({"data": [{"paragraphs": [{"contxt": "a"}]}]})";
  EXPECT_THAT(cleave::test::thrown_by([&] { read_contexts(folder / "x.json"); }).what(),
              HasSubstr("context"));
}

// Saves at steps 0 and 2. Models that are merged on 2 and on 3 ranks continue the text identically.
TEST(RealGpt2Squad, SavedModel_ContinuesTheTextIdenticallyOnAnyNumberOfRanks) {
  CLEAVE_NEEDS_DATA();
  const cleave::test::TempFolder folder;
  TutorialOptions o = options_of(2);
  o.output_dir = folder.path();
  o.train_step = 3;
  o.save_interval = 2;
  o.lr = 1e-3;
  const auto steps = run(o, 4);  // two data-parallel copies
  EXPECT_LT(steps.back().loss, steps.front().loss);
  std::set<std::string> texts;
  for (const int tp : {2, 3}) {
    o.config = cleave::test::config_of(tp);
    cleave::test::on_world(tp, [&](World& world) {
      const std::string text = merge(world, o, "What is the");
      if (world.rank() == 0) texts.insert(text);
    });
  }
  EXPECT_EQ(texts.size(), 1U) << testing::PrintToString(texts);
  EXPECT_THAT(*texts.begin(), testing::StartsWith("What is the"));
  EXPECT_TRUE(fs::exists(folder / "parallel_ckpt/pytorch_model_tp_1_pp_0.bin"));
  EXPECT_TRUE(fs::exists(folder / "merged_ckpt/pytorch_model.bin"));
  EXPECT_TRUE(fs::exists(folder / "merged_ckpt/tokenizer.json"));
}

// deepspeed starts a script once per rank, with --local_rank=N.
TEST(RealGpt2Squad, LocalRankOfDeepspeed_IsAccepted) {
  CLEAVE_NEEDS_DATA();
  const auto ran = cleave::test::run_program(
      {CLEAVE_EXAMPLE, "--local_rank=0", "--tensor_parallel_size", "1", "--train_step", "1"},
      {.environment = {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                       "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29571"}});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("step   0  loss "));
}

TEST(Gpt2Squad, NumbersOutsideTheirRange_ExitWith2AndName) {
  for (const char* flag :
       {"--batch_size=0", "--seq_len=0", "--train_step=0", "--save_interval=0", "--num_ranks=-2",
        "--lr=-1", "--lr=nan", "--lr=inf", "--seed=-1", "--seed=18446744073709551616"}) {
    const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, flag});
    EXPECT_EQ(ran.exit_code, 2) << flag << ran.err;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_THAT(ran.err, HasSubstr(name + ": "));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

// The tutorial's data has 1686 contexts.
TEST(RealGpt2Squad, BatchOfMoreSequencesThanTheData_IsRefused) {
  CLEAVE_NEEDS_DATA();
  const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--batch_size=1687"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("is more than the 1686 contexts of the data"));
}

TEST(Gpt2Squad, WrongFlag_ExitsWith2InOneLine) {
  const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--no_such_flag"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: The following argument was not expected: --no_such_flag\n");
}

}  // namespace
}  // namespace gpt2_squad
