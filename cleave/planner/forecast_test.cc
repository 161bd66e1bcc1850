#include "cleave/planner/forecast.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "cleave/planner/layout_options.h"
#include "cleave/planner/rank_layouts.h"
#include "cleave/torch_internals/meta_device.h"
#include "tests/support/reads_start.h"

namespace cleave::forecast_test {
namespace {

TEST(MetaMemory, TensorsAndViews_CountTheirStorageOnce) {
  MetaMemory memory;
  EXPECT_EQ(memory.live(), 0);
  {
    const Tensor a = at::empty({3, 5}, at::dtype(at::kFloat).device(at::kMeta));
    const Tensor view = a.t();
    EXPECT_EQ(memory.live(), 60);
    const Tensor b = a + 1;
    EXPECT_EQ(memory.live(), 120);
  }
  EXPECT_EQ(memory.live(), 0);
  EXPECT_EQ(memory.peak(), 120);
  memory.reset_peak();
  EXPECT_EQ(memory.peak(), 0);
}

const char* const kLlama = R"json({"model_type": "llama", "vocab_size": 40, "hidden_size": 16,
  "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "max_position_embeddings": 64})json";
const StepShape kStep{.batch_size = 6, .micro_batch_size = 6, .seq_len = 8};

RankForecast of_first_rank(const ParallelConfig& layout, const StepShape& step = kStep) {
  const Json config = Json::parse(kLlama, "config.json");
  ParallelConfig planned = layout;
  planned.plan = make_model(config)->plan(layout.sequence_parallel);
  return forecast(config, planned, step).ranks.front();
}

int64_t num_weights() {
  int64_t sum = 0;
  for (const auto& p : make_model(Json::parse(kLlama, "config.json"))->parameters()) {
    sum += p->numel();
  }
  return sum;
}

TEST(Forecast, OneRank_HoldsEveryWeightItsGradientAndTwoMoments) {
  const RankForecast r = of_first_rank({});
  EXPECT_EQ(r.memory.weights, 4 * num_weights());
  EXPECT_EQ(r.memory.gradients, 4 * num_weights());
  EXPECT_EQ(r.memory.optimizer, 8 * num_weights());
  EXPECT_EQ(r.tp.num_calls + r.dp.num_calls + r.pp.num_calls, 0);
  const StepShape sgd{.batch_size = 6,
                      .micro_batch_size = 6,
                      .seq_len = 8,
                      .optimizer = {.kind = OptimizerOptions::Kind::kSgd}};
  EXPECT_EQ(of_first_rank({}, sgd).memory.optimizer, 0);
}

// A matrix of Muon has one moment; an average is one number a weight.
TEST(Forecast, MuonAndAverages_AreCounted) {
  int64_t in_matrices = 0;
  for (const auto& p : make_model(Json::parse(kLlama, "config.json"))->parameters()) {
    const bool is_in_block = p->shape().size() == 2 && p->shape()[0] != 40;  // the vocabulary
    if (is_in_block) in_matrices += p->numel();
  }
  const auto bytes = [](const OptimizerOptions& optimizer) {
    const StepShape step{
        .batch_size = 6, .micro_batch_size = 6, .seq_len = 8, .optimizer = optimizer};
    return of_first_rank({}, step).memory.optimizer;
  };
  EXPECT_EQ(bytes({.kind = OptimizerOptions::Kind::kMuon}), 8 * num_weights() - 4 * in_matrices);
  EXPECT_EQ(bytes({.ema = 0.9}), 12 * num_weights());
}

// Oracle: the same sequences, counted one by one.
TEST(Forecast, Pairs_NeedWhatTwiceAsManySequencesNeed) {
  const StepShape sequences{.batch_size = 12, .micro_batch_size = 4, .seq_len = 8};
  StepShape pairs{.batch_size = 6, .micro_batch_size = 2, .seq_len = 8};
  EXPECT_NE(of_first_rank({}, pairs).memory.total(), of_first_rank({}, sequences).memory.total());
  pairs.rows_per_sample = 2;
  EXPECT_EQ(of_first_rank({}, pairs).memory.total(), of_first_rank({}, sequences).memory.total());
  EXPECT_EQ(pairs.tokens(), sequences.tokens());
}

// As in Megatron, an activation is summed twice in a layer's forward and twice in its backward,
// once after the embedding and once before the head. The loss sends four numbers a token: the
// largest logit, then three sums.
TEST(Forecast, TensorParallel_SendsTwoSumsOfALayerEachWay) {
  const RankForecast r = of_first_rank({.tp = 2});
  const int64_t tokens = 6 * 8;
  const int64_t activation = tokens * 16 * 4;  // an all-reduce of two ranks sends all of it
  EXPECT_EQ(r.tp.bytes, (4 * 4 + 2) * activation + 4 * tokens * 4);
  EXPECT_EQ(r.tp.num_calls, 4 * 4 + 2 + 2);
}

// Four query heads belong to each KV head: of 8 over 3 ranks, the middle one has the query
// heads 3, 4 and 5, and so parts of both KV heads.
TEST(Forecast, RankInTheMiddleWithMoreKvHeads_IsTheOneThatIsForecast) {
  const Json config =
      Json::parse(R"json({"model_type": "llama", "vocab_size": 30, "hidden_size": 32,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "max_position_embeddings": 64})json",
                  "config.json");
  const ParallelConfig layout{.tp = 3, .plan = make_model(config)->plan(false)};
  std::vector<int64_t> weights;
  for (int rank = 0; rank < 3; ++rank) {
    weights.push_back(rank_program(config, layout, kStep, rank).forecast.memory.weights);
  }
  // A key and a value matrix [4, 32] of one head more in each of two layers.
  EXPECT_EQ(weights[1] - weights[0], int64_t{2} * 2 * 4 * 32 * 4);
  EXPECT_EQ(forecast(config, layout, kStep).ranks.front().memory.weights, weights[1]);
}

TEST(Forecast, DataParallel_SendsEveryGradientOnceAndKeepsWhatShardingLeaves) {
  const RankForecast plain = of_first_rank({.dp = 2});
  EXPECT_EQ(plain.dp.bytes, 4 * num_weights());
  const RankForecast zero = of_first_rank({.dp = 2, .sharding = DataSharding::kZero1});
  EXPECT_EQ(zero.memory.optimizer, 4 * num_weights());
  EXPECT_EQ(zero.memory.weights, 2 * 4 * num_weights() - 2 * num_weights());  // whole and a half
  const RankForecast fsdp = of_first_rank({.dp = 2, .sharding = DataSharding::kFsdp});
  EXPECT_NEAR(static_cast<double>(fsdp.memory.weights), 2.0 * static_cast<double>(num_weights()),
              64);
  EXPECT_EQ(fsdp.dp.bytes, 3 * 2 * num_weights());  // gathered twice, summed once
}

// Gradients cross dp in half the bytes; gathered weights stay in fp32.
TEST(Forecast, GradientsInBf16_SendHalfTheBytes) {
  const auto sent = [](DataSharding sharding) {
    return of_first_rank({.dp = 2, .sharding = sharding, .reduce_type = at::kBFloat16}).dp.bytes;
  };
  EXPECT_EQ(sent(DataSharding::kNone), 2 * num_weights());
  EXPECT_EQ(sent(DataSharding::kZero1), num_weights() + 2 * num_weights());
  EXPECT_EQ(sent(DataSharding::kFsdp), num_weights() + 2 * 2 * num_weights());
}

TEST(Forecast, Pipeline_HoldsMicroBatchesOfLaterStagesAndSendsActivations) {
  const StepShape step{.batch_size = 6, .micro_batch_size = 1, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const Forecast f = forecast(config, {.pp = 4}, step);
  ASSERT_EQ(f.ranks.size(), 4U);
  const int64_t activation = 8 * 16 * 4;
  EXPECT_EQ(f.ranks[0].pp.bytes, 6 * activation);
  EXPECT_EQ(f.ranks[1].pp.bytes, 12 * activation);
  EXPECT_GT(f.ranks[1].memory.activations, f.ranks[2].memory.activations);
  EXPECT_NEAR(f.idle_share, 3.0 / 9, 1e-9);  // (S - 1) / (M + S - 1)
}

// Each stage sends the named output of the first layer too, and gets its gradient.
TEST(Forecast, PipelineWithANamedOutput_SendsItBesideTheActivations) {
  register_model<test::ReadsStart>("reads_start");
  const Json config = Json::parse(
      R"({"model_type": "reads_start", "vocab_size": 40, "hidden_size": 16,
          "num_hidden_layers": 4})",
      "config.json");
  const StepShape step{.batch_size = 6, .micro_batch_size = 1, .seq_len = 8};
  const Forecast f = forecast(config, {.pp = 4}, step);
  ASSERT_EQ(f.ranks.size(), 4U);
  const int64_t activation = 8 * 16 * 4;
  EXPECT_EQ(f.ranks[0].pp.bytes, 2 * 6 * activation);
  EXPECT_EQ(f.ranks[1].pp.bytes, 2 * 12 * activation);
  EXPECT_EQ(f.ranks[3].pp.bytes, 2 * 6 * activation);
}

// Experts send what an MLP does; the sum of the routers' gradients over tp is one more call.
TEST(Forecast, ExpertsOnSplitRanks_SendNoMoreThanAnMlp) {
  const auto of = [](const std::string& family) {
    auto json = nlohmann::json::parse(kLlama);
    if (family == "mixtral") json.update({{"num_local_experts", 5}, {"num_experts_per_tok", 2}});
    json["model_type"] = family;
    const Json config = Json::parse(json.dump(), "config.json");
    const ParallelConfig layout{.tp = 2, .plan = make_model(config)->plan(false)};
    return forecast(config, layout, kStep);
  };
  const Forecast llama = of("llama"), mixtral = of("mixtral");
  EXPECT_EQ(mixtral.ranks[0].tp.num_calls, llama.ranks[0].tp.num_calls + 1);
  EXPECT_GT(mixtral.ranks[0].memory.weights, 2 * llama.ranks[0].memory.weights);
  // Per token and block: a router, and one MLP more.
  EXPECT_NEAR(mixtral.flops - llama.flops, 3.0 * 2 * 48 * 4 * (5 * 16 + 3 * 16 * 32), 1e-3);
}

// Each kind of labels has a loss that runs on the meta device.
TEST(Forecast, LabelsOfSequences_AreForecastOnOneRankAndTwo) {
  const std::map<std::string, int> num_labels{
      {"single_label_classification", 3}, {"multi_label_classification", 3}, {"regression", 1}};
  for (const auto& [problem, number] : num_labels) {
    auto json = nlohmann::json::parse(kLlama);
    json.update({{"architectures", {"LlamaForSequenceClassification"}},
                 {"problem_type", problem},
                 {"num_labels", number}});
    const Json config = Json::parse(json.dump(), "config.json");
    const auto model = make_model(config);
    int64_t num_weights = 0;
    for (const auto& p : model->parameters()) num_weights += p->numel();
    const RankForecast one = forecast(config, {.plan = model->plan()}, kStep).ranks.front();
    EXPECT_EQ(one.memory.optimizer, 8 * num_weights) << problem;
    const RankForecast half =
        forecast(config, {.tp = 2, .plan = model->plan()}, kStep).ranks.front();
    EXPECT_LT(half.memory.weights, one.memory.weights) << problem;
    EXPECT_GT(half.tp.num_calls, 0) << problem;
  }
}

TEST(CrossHostWarning, TensorParallelOverHosts_NamesTheSizesThatStayOnOneHost) {
  EXPECT_EQ(cross_host_warning({.dp = 2, .tp = 4}, 8), "");
  EXPECT_EQ(cross_host_warning({.dp = 4, .tp = 4}, 8), "");
  EXPECT_EQ(
      cross_host_warning({.dp = 2, .tp = 8}, 4),
      "tp=8 spans several hosts of 4 ranks, so every layer's sums cross the network; a tp of 1, 2, "
      "4 stays on one host");
  EXPECT_NE(cross_host_warning({.dp = 4, .tp = 3}, 4), "");
}

/// A search's machine, whatever its layouts need.
auto always(const Machine& machine) {
  return [machine](const MeasuredRun& /*run*/) { return machine; };
}

// The closed form: 20 ms of the network's bytes, from 256 KiB to 8 MiB.
TEST(BucketBytes, OfANetwork_TakeTwentyMilliseconds) {
  EXPECT_EQ(bucket_bytes_at(25e6), 500'000);
  EXPECT_EQ(bucket_bytes_at(125e6), 2'500'000);
  EXPECT_EQ(bucket_bytes_at(1e6), 256 << 10);
  EXPECT_EQ(bucket_bytes_at(1e10), 8 << 20);
}

TEST(RankLayouts, FourRanks_AreListedBestFirstWithReasonsForThoseRefused) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 8, .micro_batch_size = 0, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const auto all = rank_layouts(
      config, {.num_ranks = 8, .step = step, .measure = always(machine), .limit = 1 << 18});
  ASSERT_FALSE(all.empty());
  bool was_small = true;
  bool was_possible = true;
  int num_refused = 0;
  for (const LayoutCandidate& c : all) {
    EXPECT_EQ(c.layout.num_ranks(), 8);
    EXPECT_TRUE(was_possible || !c.refused.empty());
    EXPECT_TRUE(was_small || !c.fits);
    was_possible = c.refused.empty();
    was_small = c.fits;
    num_refused += c.refused.empty() ? 0 : 1;
    if (c.layout.tp == 8 || c.layout.pp == 8) {
      EXPECT_NE(c.refused, "") << c.layout.describe();
    }
    EXPECT_EQ(c.fits, c.refused.empty() && c.forecast.most_bytes() <= 1 << 18);
  }
  // Four heads refuse tp = 8, with and without sequence parallelism; four layers refuse pp = 8.
  EXPECT_EQ(num_refused, 3);
}

// As `train` does: of 8 sequences, 2 ranks have 4 each, and 4 ranks 2.
TEST(RankLayouts, MicroBatchLargerThanTheShareOfARank_IsRefused) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 8, .micro_batch_size = 3, .seq_len = 8};
  const auto all = rank_layouts(
      Json::parse(kLlama, "config.json"),
      {.num_ranks = 4, .step = step, .measure = always(machine), .limit = int64_t{1} << 30});
  int num_refused = 0;
  for (const LayoutCandidate& c : all) {
    EXPECT_EQ(c.refused.empty(), c.layout.dp <= 2) << c.layout.describe();
    if (c.refused.empty()) continue;
    ++num_refused;
    EXPECT_EQ(c.refused, "micro-batch-size=3 is more than the 2 sequences of a data-parallel rank");
  }
  EXPECT_EQ(num_refused, 3);  // three kinds of sharding
}

// Oracle: a checkpoint has the weights in the dtype, masters if that is narrower, and two moments;
// the ranks of dp write equal shares of it. Runs of such layouts have these bytes more.
TEST(Forecast, AsyncSaves_TakeACopyOfTheRanksShareOfTheCheckpoint) {
  const Json config = Json::parse(kLlama, "config.json");
  double elements = 0;
  for (const auto& p : make_model(config)->parameters()) {
    elements += static_cast<double>(p->numel());
  }
  StepShape step{.batch_size = 4, .micro_batch_size = 2, .seq_len = 8};
  for (const auto sharding : {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      ParallelConfig layout{.dp = 2, .sharding = sharding, .compute_type = type};
      layout.plan = make_model(config)->plan(/*sequence_parallel=*/false);
      step.is_saved_async = false;
      const int64_t without = forecast(config, layout, step).most_bytes();
      step.is_saved_async = true;
      const int64_t more = forecast(config, layout, step).most_bytes() - without;
      EXPECT_NEAR(static_cast<double>(more) / elements, type == at::kFloat ? 6 : 7, 0.01)
          << layout.describe();
    }
  }
}

// Oracle: 8 bytes of moments for each element of A and B, which have 2 rows and columns.
TEST(RankLayouts, WithAdapters_CountOnlyTheirMoments) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 2, .micro_batch_size = 0, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const auto all =
      rank_layouts(config, {.step = step,
                            .common = {.lora = LoraOptions{.rank = 2, .targets = {"q_proj"}}},
                            .measure = always(machine),
                            .limit = 1 << 30});
  ASSERT_EQ(all.size(), 1U);
  const int64_t width = config.at("hidden_size").as_int(0);
  const int64_t layers = config.at("num_hidden_layers").as_int(0);
  EXPECT_EQ(all[0].forecast.ranks[0].memory.optimizer, layers * 8 * 2 * (width + width));
}

// Oracle: a product of a matrix of width x width and the gradient of its input, 2 operations for
// each element and token.
TEST(Forecast, DropoutOfAdaptersWithMagnitudes_CountsItsSecondProduct) {
  const StepShape step{.batch_size = 2, .micro_batch_size = 2, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const auto flops = [&](double dropout, bool is_dora) {
    const LoraOptions lora{
        .rank = 2, .dropout = dropout, .is_dora = is_dora, .targets = {"q_proj"}};
    return forecast(config, {.lora = lora}, step).flops;
  };
  const auto width = static_cast<double>(config.at("hidden_size").as_int(0));
  const auto layers = static_cast<double>(config.at("num_hidden_layers").as_int(0));
  const double want = layers * 2 * 2 * width * width * 16;
  EXPECT_NEAR(flops(0.5, true) - flops(0, true), want, 1e-9 * want);
  EXPECT_EQ(flops(0.5, false), flops(0, false));
}

// Oracle: three sizes with this product, times two (with sequence parallelism or not) if tp is
// above 1, times three (no sharding, ZeRO-1, FSDP) if dp is above 1.
int64_t num_layouts(int num_ranks) {
  int64_t count = 0;
  for (int tp = 1; tp <= num_ranks; ++tp) {
    if (num_ranks % tp != 0) continue;
    for (int pp = 1; pp <= num_ranks / tp; ++pp) {
      if (num_ranks / tp % pp != 0) continue;
      count += (tp > 1 ? 2 : 1) * (tp * pp < num_ranks ? 3 : 1);
    }
  }
  return count;
}

TEST(RankLayouts, EveryLayout_IsTriedOnceAndThoseAboveTheLimitDoNotFit) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 12, .micro_batch_size = 0, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const auto all =
      rank_layouts(config, {.num_ranks = 12, .step = step, .measure = always(machine), .limit = 1});
  EXPECT_EQ(static_cast<int64_t>(all.size()), num_layouts(12));
  std::set<std::string> names;
  for (const LayoutCandidate& c : all) {
    names.insert(c.layout.describe());
    EXPECT_FALSE(c.fits) << c.layout.describe();
  }
  EXPECT_EQ(names.size(), all.size());
}

// Oracle: the weights of one rank: those of its share of three experts, and all others.
TEST(RankLayouts, ModelWithExperts_IsTriedWithEveryEpThatDividesDp) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 4, .micro_batch_size = 0, .seq_len = 8};
  const Json config = Json::parse(R"({"model_type": "mixtral", "vocab_size": 24, "hidden_size": 16,
      "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2})",
                                  "config.json");
  int64_t of_experts = 0, of_others = 0;
  for (const auto& p : make_model(config)->parameters()) {
    const bool is_of_expert = p->name().find(".experts.") != std::string::npos;
    (is_of_expert ? of_experts : of_others) += 4 * p->numel();
  }
  ASSERT_EQ(of_experts, 4 * 3 * 3 * 16 * 8);
  const auto all = rank_layouts(
      config,
      {.num_ranks = 4, .step = step, .measure = always(machine), .limit = int64_t{1} << 40});
  std::map<int, int> count;  // of ep, among the layouts with four data-parallel ranks
  for (const LayoutCandidate& c : all) {
    if (c.layout.dp != 4) {
      EXPECT_LE(c.layout.ep, c.layout.dp) << c.layout.describe();
      continue;
    }
    ++count[c.layout.ep];
    if (c.layout.sharding != DataSharding::kNone) continue;
    // The first rank of ep 2 has two of the three experts.
    const int64_t share = c.layout.ep == 1 ? of_experts : of_experts / 3 * 2;
    EXPECT_EQ(c.forecast.ranks.at(0).memory.weights, of_others + share) << c.layout.describe();
  }
  EXPECT_EQ(count, (std::map<int, int>{{1, 3}, {2, 3}}));  // three kinds of sharding
}

// Oracle: the dry run of each rank alone. Of three experts, the second rank of ep has one.
TEST(Forecast, OfARankWithFewerExperts_IsItsOwn) {
  const StepShape step{.batch_size = 4, .micro_batch_size = 1, .seq_len = 8};
  const Json config = Json::parse(R"({"model_type": "mixtral", "vocab_size": 24, "hidden_size": 16,
      "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2})",
                                  "config.json");
  ParallelConfig layout{.pp = 2, .dp = 2, .tp = 2, .ep = 2};
  layout.plan = make_model(config)->plan(/*sequence_parallel=*/false);
  const Forecast all = forecast(config, layout, step);
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    EXPECT_EQ(all.of_rank(layout, rank).memory.total(),
              rank_program(config, layout, step, rank).forecast.memory.total())
        << rank;
  }
  EXPECT_LT(all.of_rank(layout, 2).memory.total(), all.of_rank(layout, 0).memory.total());
}

// Each size that does not fit is tried only once; trying every layout took minutes.
TEST(RankLayouts, HundredThousandRanks_AreListedInSeconds) {
  const Machine machine{.flops = 1e9, .bytes_per_s = 1e9, .call_s = 1e-6};
  const StepShape step{.batch_size = 200000, .micro_batch_size = 0, .seq_len = 8};
  const Json config = Json::parse(kLlama, "config.json");
  const double start = monotonic_s();
  LayoutSearch search{
      .num_ranks = 100000, .step = step, .measure = always(machine), .limit = int64_t{1} << 30};
  std::vector<int64_t> done;
  search.on_progress = [&](int64_t count, int64_t all) {
    EXPECT_EQ(all, num_layouts(100000));
    done.push_back(count);
  };
  const auto all = rank_layouts(config, search);
  EXPECT_LT(monotonic_s() - start, 60);
  EXPECT_EQ(static_cast<int64_t>(all.size()), num_layouts(100000));
  ASSERT_EQ(done.size(), all.size());
  for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], static_cast<int64_t>(i) + 1);
  for (const LayoutCandidate& c : all) {
    EXPECT_EQ(c.refused.empty(), c.layout.tp <= 4 && c.layout.pp <= 4) << c.layout.describe();
  }
}

}  // namespace
}  // namespace cleave::forecast_test
