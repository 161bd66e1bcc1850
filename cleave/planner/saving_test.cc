#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/planner/rank_layouts.h"

namespace cleave::saving_test {
namespace {

const char* const kLlama = R"json({"model_type": "llama", "vocab_size": 40, "hidden_size": 16,
  "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "max_position_embeddings": 64})json";
const StepShape kStep{.batch_size = 16, .micro_batch_size = 8, .seq_len = 64};

Json config() {
  return Json::parse(kLlama, "config.json");
}

ParallelConfig two_dp() {
  return {.dp = 2, .plan = make_model(config())->plan(false)};
}

/// Bytes of both ranks. Oracle of the search: the forecast of the options that its flags name.
int64_t bytes_of(const ParallelConfig& layout, int64_t micro_batch_size) {
  StepShape step = kStep;
  step.micro_batch_size = micro_batch_size;
  const Forecast all = forecast(config(), layout, step);
  int64_t sum = 0;
  for (const RankForecast& rank : all.ranks) sum += (2 / layout.pp) * rank.memory.total();
  return sum;
}

void expect_saving(int64_t limit, const std::string& flags, int64_t bytes) {
  const Saving saving = find_saving(config(), two_dp(), kStep, {0, 2}, limit);
  EXPECT_EQ(saving.flags, flags);
  EXPECT_EQ(saving.bytes, bytes);
}

TEST(Saving, RanksOfAHost_AreThoseOfTheirPipelineStages) {
  const ParallelConfig layout{.pp = 2, .dp = 2, .tp = 2, .plan = make_model(config())->plan(false)};
  StepShape step = kStep;
  step.micro_batch_size = 2;
  const Forecast all = forecast(config(), layout, step);
  const int64_t first = all.ranks[0].memory.total(), last = all.ranks[1].memory.total();
  ASSERT_NE(first, last);
  EXPECT_EQ(bytes_of_ranks(all, layout, {0, 8}), 4 * first + 4 * last);
  EXPECT_EQ(bytes_of_ranks(all, layout, {2, 5}), 2 * first + last);
  EXPECT_EQ(bytes_of_ranks(all, layout, {6, 8}), 2 * last);
}

// Three experts on two ranks: the first has two of them. An expert has 3 matrices of 12 x 5 in each
// of two blocks, in fp32.
TEST(Saving, RanksWithFewerExperts_AreCountedWithTheirs) {
  const Json mixtral = Json::parse(R"({"model_type": "mixtral", "vocab_size": 23, "hidden_size": 12,
      "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2})",
                                   "config.json");
  const ParallelConfig layout{.dp = 4, .tp = 1, .ep = 2, .plan = make_model(mixtral)->plan(false)};
  const Forecast all =
      forecast(mixtral, layout, {.batch_size = 4, .micro_batch_size = 1, .seq_len = 7});
  ASSERT_EQ(all.with_fewer_experts.size(), 1U);
  const MemoryForecast two = all.ranks[0].memory, one = all.with_fewer_experts[0].memory;
  EXPECT_EQ(two.weights - one.weights, 2 * 3 * 12 * 5 * 4);
  EXPECT_EQ(bytes_of_ranks(all, layout, {0, 4}), 2 * two.total() + 2 * one.total());
  EXPECT_EQ(bytes_of_ranks(all, layout, {1, 2}), one.total());
}

TEST(Saving, LimitOfEachOption_FindsItsFlags) {
  ParallelConfig zero1 = two_dp(), fsdp = two_dp(), full = two_dp();
  zero1.sharding = DataSharding::kZero1;
  fsdp.sharding = DataSharding::kFsdp;
  full.recompute = RecomputeKind::kFull;
  // A limit between two options that the search tries one after the other.
  ASSERT_LT(bytes_of(two_dp(), 4), bytes_of(two_dp(), 8));
  expect_saving(bytes_of(two_dp(), 8) - 1, "--micro-batch-size 4", bytes_of(two_dp(), 4));
  expect_saving(bytes_of(two_dp(), 1), "--micro-batch-size 1", bytes_of(two_dp(), 1));
  ASSERT_LT(bytes_of(zero1, 1), bytes_of(two_dp(), 1));
  expect_saving(bytes_of(two_dp(), 1) - 1, "--zero 1 --micro-batch-size 1", bytes_of(zero1, 1));
  ASSERT_LT(bytes_of(fsdp, 1), bytes_of(zero1, 1));
  expect_saving(bytes_of(zero1, 1) - 1, "--fsdp --micro-batch-size 1", bytes_of(fsdp, 1));
}

TEST(Saving, NothingThatFits_IsTheSmallest) {
  ParallelConfig fsdp = two_dp();
  fsdp.sharding = DataSharding::kFsdp;
  fsdp.recompute = RecomputeKind::kFull;
  const Saving saving = find_saving(config(), two_dp(), kStep, {0, 2}, 1);
  EXPECT_GT(saving.bytes, 1);
  EXPECT_LE(saving.bytes, bytes_of(fsdp, 1));
  EXPECT_FALSE(saving.flags.empty());
}

// One rank: only its own activations can shrink.
TEST(Saving, WithoutDataParallelism_NoShardingIsSuggested) {
  ParallelConfig one{.plan = make_model(config())->plan(false)};
  const Saving saving = find_saving(config(), one, kStep, {0, 1}, 1);
  EXPECT_EQ(saving.flags.find("--fsdp"), std::string::npos) << saving.flags;
  EXPECT_EQ(saving.flags.find("--zero"), std::string::npos) << saving.flags;
  EXPECT_EQ(saving.flags.find("--tp"), std::string::npos) << saving.flags;
  EXPECT_NE(saving.flags.find("--micro-batch-size 1"), std::string::npos) << saving.flags;
}

}  // namespace
}  // namespace cleave::saving_test
