#include "cleave/train/task.h"

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/atomic_write.h"
#include "cleave/train/rank_model.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::task_test {
namespace {

using testing::HasSubstr;

TEST(TargetsOf, EachTask_ReadsItsLabels) {
  Batch batch;
  batch.labels = at::tensor({1, 2, 3}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(
      at::equal(targets_of(batch, Task::kLm), at::tensor({2, 3, -100}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(targets_of(batch, Task::kMlm), batch.labels));
  EXPECT_TRUE(at::equal(targets_of(batch, Task::kClassify), batch.labels));
}

TEST(NumRight, LogitsShardedByClass_AreGathered) {
  const Tensor logits =
      at::tensor({0.1, 0.9, 0.0, 0.7, 0.2, 0.1, 0.0, 0.1, 0.2}, at::kDouble).view({3, 3});
  const Tensor targets = at::tensor({1, 2, 2}, at::kLong);
  test::on_ranks(2, [&](const Axis& axis) {
    EXPECT_EQ(num_right(DTensor(logits, axis, Replicate{}), targets), 2);
    EXPECT_EQ(num_right(DTensor::distribute(logits, axis, Shard{1}), targets), 2);
  });
}

TEST(BatchRules, ATokenizerWithoutAMaskToken_IsRefusedForMaskedText) {
  const auto model = make_model(preset_config("bert-tiny", 257));
  const auto bytes = byte_tokenizer();
  const Error error = test::thrown_by([&] { batch_rules(*model, bytes.get(), true, 0); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("the bytes tokenizer has no mask token"));
  EXPECT_FALSE(batch_rules(*model, nullptr, false, 0).masking) << "rows of ids have labels";
}

/// The trained classifier without dropout, as in the recorded run.
ModelFolder imdb_model() {
  ModelFolder folder = ModelFolder::open(test::data_folder() + "/models/bert-imdb");
  auto config = nlohmann::ordered_json::parse(folder.config.dump());
  config["hidden_dropout_prob"] = 0.0;
  config["attention_probs_dropout_prob"] = 0.0;
  folder.config = Json::parse(config.dump(), "config.json");
  return folder;
}

// Oracle: the same loop in PyTorch with transformers' model. 1e-4 is the tolerance in its notes.
TEST(RealImdbTraining, TwelveStepsOnReviews_GiveTheirIdsLossesAndNorms) {
  CLEAVE_NEEDS_DATA();
  const Json golden = Json::parse_file(test::data_folder() + "/goldens/training/bert-imdb.json");
  const ModelFolder folder = imdb_model();
  const auto data = open_dataset({.files = {test::data_folder() + "/text/imdb/imdb-train.csv"},
                                  .tokenizer = load_tokenizer(folder.path),
                                  .seq_len = golden.at("seq_len").as_int(),
                                  .cache_folder = "",
                                  .task = Task::kClassify,
                                  .classes = {"negative", "positive"}});
  ASSERT_EQ(data->size(), 7500);
  const SampleOrder order{.num_samples = data->size(), .batch_size = 8, .shuffle = false};
  for (const ParallelConfig& layout : {ParallelConfig{}, ParallelConfig{.tp = 2},
                                       ParallelConfig{.dp = 2, .tp = 2}, ParallelConfig{.pp = 2}}) {
    run_ranks(layout.num_ranks(), [&](World& world) {
      const Mesh mesh =
          Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
      auto model = make_model(folder.config);
      ParallelConfig planned = layout;
      planned.plan = model->plan();
      RankModel rank(
          std::move(model), planned, mesh, world,
          {.eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll});
      load_model(rank.model(), folder, at::kFloat);
      rank.refresh_weights();
      const BatchRules rules = batch_rules(rank.model(), nullptr, true, 0);
      for (int64_t step = 0; step < golden.at("steps").as_int(); ++step) {
        const int64_t rows = 8 / layout.dp;
        const int64_t first = rows * mesh["dp"].rank();
        const Batch batch = rules.make(*data, order, step, first, first + rows);
        if (step == 0) {
          const Json want = golden.at("first_batch_ids").at(static_cast<size_t>(first));
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_EQ(batch.ids[0][static_cast<int64_t>(i)].item<int64_t>(), want.at(i).as_int());
          }
        }
        rank.optimizer().zero_grad();
        const PassResult pass =
            rank.train_pass(micro_batches_of(batch, rows / layout.pp, layout.pp), 0, step);
        const Tensor loss =
            mesh["dp"].all_reduce(at::scalar_tensor(pass.loss, at::kDouble), "loss");
        const auto at_step = static_cast<size_t>(step);
        EXPECT_NEAR(loss.item<double>(), golden.at("losses").at(at_step).as_number(), 1e-4);
        const double norm = pass.norm.value;
        EXPECT_NEAR(norm, golden.at("grad_norms").at(at_step).as_number(), 1e-4 * norm);
        rank.step(5e-4);
      }
    });
  }
}

// Oracle: a batch of one sample. If masks depended on the row in the batch instead of the sample's
// index, rows 0 of all batches would have the same mask.
TEST(MaskedText, EvaluatedInBatchesOfAnySize_HasTheSameTokensMasked) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += str("word ", i, '\n');
  write_atomic(folder / "text.txt", text);
  const auto data = open_dataset({.files = {(folder / "text.txt").string()},
                                  .tokenizer = byte_tokenizer(),
                                  .seq_len = 24,
                                  .cache_folder = ""});
  ASSERT_GE(data->size(), 7);
  BatchRules rules;
  rules.masking = MaskingOptions{.mask_id = 5, .vocab_size = 257, .is_special = {}, .seed = 3};
  const auto row_of = [&](int64_t sample, int64_t batch_size) {
    const SampleOrder order{
        .num_samples = data->size(), .batch_size = batch_size, .shuffle = false};
    const int64_t row = sample % batch_size;
    return rules.make_for_eval(*data, order, sample / batch_size, row, row + 1);
  };
  for (int64_t sample = 0; sample < 7; ++sample) {
    const Batch alone = row_of(sample, 1);
    EXPECT_TRUE(alone.labels.ne(-100).any().item<bool>());
    for (const int64_t batch_size : {2, 3, 7}) {
      const Batch batch = row_of(sample, batch_size);
      EXPECT_TRUE(at::equal(batch.ids, alone.ids)) << sample << " of " << batch_size;
      EXPECT_TRUE(at::equal(batch.labels, alone.labels)) << sample << " of " << batch_size;
      EXPECT_EQ(batch.first_row, sample % batch_size);
    }
  }
  EXPECT_FALSE(at::equal(row_of(0, 1).labels, row_of(1, 1).labels));
}

}  // namespace
}  // namespace cleave::task_test
