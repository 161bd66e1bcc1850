// The forecast of a layout, compared with the memory of a run.
#include "cleave/planner/forecast.h"

#include <fstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/trainer.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace cleave::forecast_test {
namespace {

const char* const kLlama = R"json({"model_type": "llama", "vocab_size": 500, "hidden_size": 48,
  "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 6,
  "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": true})json";
const char* const kGpt2 = R"json({"model_type": "gpt2", "vocab_size": 500, "n_embd": 48,
  "n_layer": 8, "n_head": 6, "n_positions": 128, "attn_pdrop": 0.1, "resid_pdrop": 0.1,
  "embd_pdrop": 0.1})json";
const char* const kBert = R"json({"model_type": "bert", "architectures": ["BertForMaskedLM"],
  "vocab_size": 500, "hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 8,
  "num_attention_heads": 6, "max_position_embeddings": 128, "type_vocab_size": 2,
  "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.1})json";

constexpr int64_t kRows = 8, kTokens = 64;

/// Peak bytes of tensors on each rank during two steps.
std::vector<int64_t> measured(const Json& config, const ParallelConfig& layout,
                              const StepShape& step) {
  std::vector<int64_t> out(static_cast<size_t>(layout.num_ranks()));
  test::on_world(layout.num_ranks(), [&](World& world) {
    const CpuMemory memory;
    const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
    RankModel rank(make_model(config), layout, mesh, world, step.optimizer);
    materialize(rank.model(), {.dtype = layout.leaf_type()});
    rank.refresh_weights();
    const int64_t share = kRows / layout.dp;
    const bool has_pairs = step.rows_per_sample == 2;
    if (has_pairs) rank.train_on_preferences(0.1);
    for (int64_t s = 0; s < 2; ++s) {
      Batch batch;
      batch.ids = test::ids({share, kTokens}, 500, 1);
      batch.labels = test::ids({share, kTokens}, 500, 2);
      batch.rows_per_sample = step.rows_per_sample;
      if (has_pairs) batch.reference = at::zeros({share}, at::kDouble);
      rank.optimizer().zero_grad();
      const int64_t size = step.micro_batch_size, rows = size * step.rows_per_sample;
      rank.train_pass(micro_batches_of(batch, size, (share + rows - 1) / rows), 0, s);
      rank.step(1e-3);
    }
    out[static_cast<size_t>(world.rank())] = memory.peak();
  });
  return out;
}

/// Returns the largest relative difference of a rank.
double expect_forecast(const char* text, ParallelConfig layout, bool sequence_parallel = false) {
  const Json config = Json::parse(text, "config.json");
  layout.plan = make_model(config)->plan(sequence_parallel);
  layout.sequence_parallel = sequence_parallel;
  const StepShape step{.batch_size = kRows,
                       .micro_batch_size = layout.pp > 1 ? 2 : kRows / layout.dp,
                       .seq_len = kTokens};
  const Forecast planned = forecast(config, layout, step);
  const std::vector<int64_t> real = measured(config, layout, step);
  double largest = 0;
  for (int p = 0; p < layout.pp; ++p) {
    const auto have = static_cast<double>(real[static_cast<size_t>(p * layout.dp * layout.tp)]);
    const MemoryForecast& m = planned.ranks[static_cast<size_t>(p)].memory;
    largest = std::max(largest, std::abs(static_cast<double>(m.total()) / have - 1));
    EXPECT_NEAR(static_cast<double>(m.total()) / have, 1, 0.1)
        << layout.describe() << ", pp " << p << ": weights " << m.weights << ", optimizer "
        << m.optimizer << ", gradients " << m.gradients << ", activations " << m.activations
        << "; measured " << have;
  }
  return largest;
}

TEST(Forecast, MemoryOfARun_IsWithinTenPercent) {
  const auto zero1 = DataSharding::kZero1;
  const auto fsdp = DataSharding::kFsdp;
  double largest = 0;
  for (const char* config : {kLlama, kGpt2, kBert}) {
    for (const ParallelConfig& layout :
         {ParallelConfig{}, ParallelConfig{.tp = 2}, ParallelConfig{.dp = 2},
          ParallelConfig{.dp = 2, .sharding = zero1}, ParallelConfig{.dp = 2, .sharding = fsdp},
          ParallelConfig{.pp = 2}, ParallelConfig{.pp = 4, .schedule = ScheduleKind::kZeroBubble},
          ParallelConfig{.pp = 2, .stages_per_rank = 2, .schedule = ScheduleKind::kInterleaved},
          ParallelConfig{.recompute = RecomputeKind::kFull},
          ParallelConfig{.tp = 2, .recompute = RecomputeKind::kSelective},
          ParallelConfig{.tp = 2, .compute_type = at::kBFloat16},
          ParallelConfig{.dp = 2, .compute_type = at::kBFloat16},
          ParallelConfig{.dp = 2, .sharding = zero1, .compute_type = at::kBFloat16},
          ParallelConfig{.dp = 2, .reduce_type = at::kBFloat16},
          ParallelConfig{.dp = 2, .sharding = fsdp, .reduce_type = at::kBFloat16},
          ParallelConfig{.pp = 2, .dp = 2, .sharding = fsdp, .compute_type = at::kBFloat16}}) {
      largest = std::max(largest, expect_forecast(config, layout));
    }
    largest = std::max(largest, expect_forecast(config, {.tp = 3}, true));
    largest = std::max(
        largest, expect_forecast(config, {.pp = 2, .dp = 2, .tp = 2, .sharding = fsdp}, true));
  }
  log_info("the largest difference of a forecast is ", 100 * largest, " %");
}

Json large_vocabulary() {
  return Json::parse(R"json({"model_type": "llama", "vocab_size": 20000, "hidden_size": 48,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 128})json",
                     "config.json");
}

// All logits of 512 tokens and 20000 classes take 41 MB, and so does their gradient. If the loss is
// computed in parts, a step needs memory for a few parts, and for two gradients of the weight: the
// sum, and that of a part.
TEST(Forecast, LossInParts_NeedsNoMemoryForAllLogits) {
  const Json config = large_vocabulary();
  constexpr int64_t kPart = 1 << 20, kLogits = kRows * kTokens * 20000 * 4;
  for (ParallelConfig layout : {ParallelConfig{.head_loss = {.most_bytes = kPart}},
                                ParallelConfig{.tp = 2, .head_loss = {.most_bytes = kPart}}}) {
    layout.plan = make_model(config)->plan();
    const StepShape step{.batch_size = kRows, .micro_batch_size = kRows, .seq_len = kTokens};
    const MemoryForecast planned = forecast(config, layout, step).ranks[0].memory;
    const int64_t held = planned.weights + planned.optimizer + planned.gradients;
    const int64_t real = measured(config, layout, step)[0];
    EXPECT_LE(real - held, kLogits / 4) << layout.describe();
    EXPECT_NEAR(static_cast<double>(planned.total()) / static_cast<double>(real), 1, 0.1)
        << layout.describe();
    layout.head_loss.most_bytes = kLogits;
    EXPECT_GE(measured(config, layout, step)[0] - held, kLogits / layout.tp) << layout.describe();
  }
}

// Pairs with adapters, whose head is frozen. Parts are large, or the peak would be the start, when
// weights are drawn.
TEST(Forecast, LossOfPairsInParts_NeedsNoMemoryForAllLogits) {
  const Json config = large_vocabulary();
  constexpr int64_t kPart = 2 << 20, kLogits = kRows * kTokens * 20000 * 4;
  const StepShape step{.batch_size = kRows / 2,
                       .micro_batch_size = kRows / 2,
                       .seq_len = kTokens,
                       .rows_per_sample = 2};
  ParallelConfig layout{.lora = LoraOptions{.rank = 2}, .head_loss = {.most_bytes = kPart}};
  layout.plan = make_model(config)->plan();
  const MemoryForecast planned = forecast(config, layout, step).ranks[0].memory;
  const int64_t held = planned.weights + planned.optimizer + planned.gradients;
  const int64_t real = measured(config, layout, step)[0];
  EXPECT_LE(real - held, kLogits / 4);
  EXPECT_NEAR(static_cast<double>(planned.total()) / static_cast<double>(real), 1, 0.1);
  layout.head_loss.most_bytes = kLogits;
  EXPECT_GE(measured(config, layout, step)[0] - held, kLogits);
}

/// Compares the peak bytes of a run of `cleave train` with its forecast.
void expect_forecast_of_run(TrainOptions options) {
  const test::TempFolder folder;
  options.out = folder / "run";
  options.steps = 2;
  const TrainSetup setup = make_setup(options, 0, std::nullopt);
  ASSERT_TRUE(setup.planned.has_value());
  int64_t most_bytes = 0;
  test::on_world(1, [&](World& world) {
    Trainer trainer(setup, world);
    EXPECT_EQ(trainer.run(), 0);
    most_bytes = trainer.most_bytes();
  });
  const double share =
      static_cast<double>(setup.planned->most_bytes()) / static_cast<double>(most_bytes);
  EXPECT_NEAR(share, 1, 0.1) << options.model << " " << options.dtype << ": forecast "
                             << setup.planned->most_bytes() << ", measured " << most_bytes;
}

// Sequences of a classifier are as long as their texts, not as --seq-len. The memory of the machine
// measurement before the first step must not count, even if a step needs less.
TEST(Forecast, OfAClassifierOnShortTexts_IsWithinTenPercentOfTheRun) {
  const test::TempFolder folder;
  for (const int64_t length : {8, 60}) {
    std::ofstream file(folder / "rows.csv");
    file << "text,label\n";
    for (int row = 0; row < 16; ++row) {
      file << std::string(static_cast<size_t>(length), static_cast<char>('a' + row)) << ','
           << row % 2 << '\n';
    }
    file.close();
    for (const int64_t batch_size : {2, 8}) {
      TrainOptions options;
      options.model = "imdb-bert";
      options.data = {folder / "rows.csv"};
      options.batch_size = batch_size;
      expect_forecast_of_run(options);
    }
  }
}

// Without a fused update, clipping copies the gradients.
TEST(Forecast, OfFewTokensInFp16_IsWithinTenPercentOfTheRun) {
  TrainOptions options;
  options.model = "llama-tiny";
  options.data = {test::source_file("LICENSE")};
  options.batch_size = 2;
  options.seq_len = 32;
  options.dtype = "fp16";
  expect_forecast_of_run(options);
}

}  // namespace
}  // namespace cleave::forecast_test
