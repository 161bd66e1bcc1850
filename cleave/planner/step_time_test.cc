// The times of a machine with round speeds are computed by hand.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/planner/machine.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace cleave::step_time_test {
namespace {

constexpr MatrixWork kProduct{.rows = 10, .inner = 10, .columns = 10};
constexpr AttentionWork kAttention{
    .batch = 1, .heads = 2, .kv_heads = 2, .queries = 4, .keys = 4, .width = 16};

/// Products of kProduct take 2 seconds and 1 for copies; passes move 100 bytes per second in the
/// cache and 10 outside.
Machine round_machine() {
  Machine m{.flops = 1, .bytes_per_s = 500, .bucket_bytes_per_s = 250, .call_s = 0.5};
  m.rank.products[kProduct].far = {2, 0, 0, 0, 1};
  m.rank.attention[kAttention] = {0.25, 0.5, 0, 0, 0};
  m.rank.memory = {{.working_set = 1 << 10, .bytes_per_s = 100},
                   {.working_set = 1 << 20, .bytes_per_s = 10}};
  m.rank.random_number_s = 0.01;
  m.rank.operation_s = 0.001;
  return m;
}

KindSeconds kinds(double products, double attention, double collectives, double optimizer,
                  double other) {
  return {products, attention, collectives, optimizer, other};
}

void expect_near(const KindSeconds& got, const KindSeconds& want) {
  for (int k = 0; k < kNumTimeKinds; ++k) {
    EXPECT_NEAR(got[static_cast<size_t>(k)], want[static_cast<size_t>(k)], 1e-12)
        << name(static_cast<TimeKind>(k));
  }
}

TEST(WorkSpeed, Work_TakesTheTimeOfItsPartsByKind) {
  OpWork work;
  work.products[kProduct] = 3;
  work.attention[kAttention] = 2;
  work.moved[4] = 200;   // in the cache
  work.moved[30] = 200;  // outside
  work.random_numbers = 100;
  work.operations = 1000;
  expect_near(round_machine().rank.seconds_of(work),
              kinds(3 * 2 + 2 * 0.25, 2 * 0.5, 0, 0, 3 * 1 + 2 + 20 + 1 + 1));
}

// Reading takes 0.01 s a byte near, 0.05 in the middle and 0.1 far: the middle is 4/9 of the way.
TEST(WorkSpeed, Product_TakesItsTimeAtTheDistancesOfItsMatrices) {
  WorkSpeed speed = round_machine().rank;
  speed.products[kProduct].near = {1, 0, 0, 0, 0.5};
  speed.memory.insert(speed.memory.begin() + 1, {.working_set = 1 << 15, .bytes_per_s = 20});
  const auto seconds_at = [&](const BytesByDistance& factors) {
    OpWork work;
    work.products[kProduct] = 4;
    work.factors[kProduct] = factors;
    return speed.seconds_of(work);
  };
  BytesByDistance near{}, middle{}, mixed{};
  near[4] = 800;
  middle[15] = 800;
  mixed[0] = 200;
  mixed[40] = 600;
  expect_near(seconds_at(near), kinds(4, 0, 0, 0, 2));
  expect_near(seconds_at(middle), kinds(4 + 4 * 4 / 9.0, 0, 0, 0, 2 + 2 * 4 / 9.0));
  expect_near(seconds_at(mixed), kinds(4 + 4 * 0.75, 0, 0, 0, 2 + 2 * 0.75));
}

TEST(WorkSpeed, OtherSizes_HaveTheSpeedOfTheMostSimilar) {
  WorkSpeed speed = round_machine().rank;
  MatrixWork small = kProduct;
  small.rows = 1;
  speed.products[small].far = {1, 0, 0, 0, 0};
  MatrixWork wide = kProduct;
  wide.columns = 30;
  OpWork work;
  work.products[wide] = 1;
  expect_near(speed.seconds_of(work), kinds(6, 0, 0, 0, 3));
  // None of the type was measured: by the speed of large products.
  work.products.clear();
  wide.type = at::kBFloat16;
  work.products[wide] = 1;
  speed.flops = 100;
  expect_near(speed.seconds_of(work), kinds(60, 0, 0, 0, 0));
}

// A GPU, of which only the speed of large products is known. Backward has five products of the
// sizes of forward's two; a causal mask hides half of each.
TEST(WorkSpeed, AttentionThatWasNotMeasured_TakesItsFlops) {
  const WorkSpeed speed{.flops = 100};
  AttentionWork shape = kAttention;  // 2 heads, 4 x 4 scores of width 16: two products of 2 x 512
  OpWork work;
  work.attention[shape] = 3;
  expect_near(speed.seconds_of(work), kinds(0, 3 * 2048 / 100.0, 0, 0, 0));
  shape.is_backward = true;
  work.attention = {{shape, 1}};
  expect_near(speed.seconds_of(work), kinds(0, 5 * 1024 / 100.0, 0, 0, 0));
  shape.is_causal = true;
  work.attention = {{shape, 1}};
  expect_near(speed.seconds_of(work), kinds(0, 5 * 512 / 100.0, 0, 0, 0));
}

TEST(WorkSpeed, AttentionWithDropout_HasNotTheSpeedOfThatWithout) {
  WorkSpeed speed = round_machine().rank;
  AttentionWork with = kAttention;
  with.has_dropout = true;
  OpWork work;
  work.attention[with] = 1;
  expect_near(speed.seconds_of(work), {});
  AttentionWork larger = with;
  larger.batch = 2;
  speed.attention[larger] = {0, 6, 0, 0, 0};
  expect_near(speed.seconds_of(work), kinds(0, 3, 0, 0, 0));
}

TEST(PartOf, Products_AreHalvedUntilTheyAreSmallEnough) {
  const MatrixWork whole{.batch = 4, .rows = 8, .inner = 32, .columns = 8};
  EXPECT_EQ(part_of(whole, whole.flops()), whole);
  MatrixWork part = whole;
  part.batch = 1;
  part.inner = 8;
  EXPECT_EQ(part_of(whole, whole.flops() / 16), part);
  EXPECT_EQ(part_of(whole, 0), (MatrixWork{.batch = 1, .rows = 1, .inner = 1, .columns = 1}));
}

TEST(PartOf, Attention_HasFewerSequencesAndThenFewerHeads) {
  const auto part = [](int64_t heads, int64_t kv_heads, double share) {
    AttentionWork whole = kAttention;
    whole.batch = 2;
    whole.heads = heads;
    whole.kv_heads = kv_heads;
    const double flops = 4.0 * 2 * static_cast<double>(heads) * 4 * 4 * 16;
    const AttentionWork out = part_of(whole, flops * share);
    return std::vector<int64_t>{out.batch, out.heads, out.kv_heads, out.queries, out.keys};
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(part(8, 4, 1), (Sizes{2, 8, 4, 4, 4}));
  EXPECT_EQ(part(8, 4, 1.0 / 2), (Sizes{1, 8, 4, 4, 4}));
  EXPECT_EQ(part(8, 4, 1.0 / 4), (Sizes{1, 4, 2, 4, 4}));
  EXPECT_EQ(part(8, 1, 1.0 / 4), (Sizes{1, 4, 1, 4, 4}));
  EXPECT_EQ(part(15, 5, 1.0 / 4), (Sizes{1, 6, 2, 4, 4}));
  EXPECT_EQ(part(3, 2, 1.0 / 4), (Sizes{1, 1, 1, 4, 4}));  // heads of a rank that shares KV heads
  EXPECT_EQ(part(8, 4, 0), (Sizes{1, 1, 1, 4, 4}));
}

TEST(PartOf, Attention_OfLongSequencesIsShorter) {
  const auto length = [](int64_t tokens, int64_t window, double share) {
    AttentionWork whole = kAttention;
    whole.queries = whole.keys = tokens;
    whole.window = window;
    const double seen = static_cast<double>(tokens * (window > 0 ? window : tokens));
    const double flops = 4.0 * static_cast<double>(whole.heads) * seen * 16;
    const AttentionWork out = part_of(whole, flops * share);
    EXPECT_EQ(out.queries, out.keys);
    return out.queries;
  };
  const double one_head = 1.0 / static_cast<double>(kAttention.heads);
  EXPECT_EQ(length(8192, 0, one_head), 8192);
  EXPECT_EQ(length(8192, 0, one_head / 4), 4096);
  EXPECT_EQ(length(8192, 0, 0), 1024);
  EXPECT_EQ(length(2047, 0, 0), 2047);
  // With a window, the flops of half the tokens are half.
  EXPECT_EQ(length(8192, 1024, one_head / 2), 4096);
  EXPECT_EQ(length(8192, 1024, 0), 2048);
}

/// Ranks of a pipeline; forward takes 3 seconds on each, backward 6.
Forecast pipeline(int pp, int micro_batches) {
  Forecast f;
  f.schedule = make_schedule(
      {.kind = ScheduleKind::k1F1B, .num_ranks = pp, .num_micro_batches = micro_batches});
  for (int p = 0; p < pp; ++p) {
    RankForecast& rank = f.ranks.emplace_back();
    rank.actions[{Action::Kind::kForward, p}].products[kProduct] = 1;
    rank.actions[{Action::Kind::kBackward, p}].products[kProduct] = 2;
  }
  return f;
}

TEST(StepTime, OneRank_AddsItsWorkAndTheOptimizer) {
  Forecast f = pipeline(1, 2);
  f.ranks[0].rest.moved[30] = 50;
  f.ranks[0].optimizer_bytes = 70;
  const StepTime time = step_time(f, {}, round_machine());
  expect_near(time.kinds, kinds(12, 0, 0, 7, 6 + 5));
  EXPECT_DOUBLE_EQ(time.total(), 30);
}

TEST(StepTime, Messages_CostTheirCallsAndBytes) {
  Forecast f = pipeline(1, 2);
  f.ranks[0].tp = {.num_calls = 10, .bytes = 1000};
  f.ranks[0].dp = {.num_calls = 2, .bytes = 500};
  const StepTime time = step_time(f, {.dp = 2, .tp = 2}, round_machine());
  EXPECT_NEAR(time.of(TimeKind::kCollectives), 10 * 0.5 + 2 + 2 * 0.5 + 2, 1e-12);
  EXPECT_NEAR(time.waiting, 0, 1e-12);
}

// 1F1B takes (M + S - 1) times a forward and a backward; rank 0 waits in S - 1 of them.
TEST(StepTime, Pipeline_WaitsWhileItFillsAndDrains) {
  const StepTime time = step_time(pipeline(4, 8), {.pp = 4}, round_machine());
  EXPECT_NEAR(time.total(), (8 + 3) * 9, 1e-9);
  EXPECT_NEAR(time.of(TimeKind::kCollectives), 3 * 9, 1e-9);
  EXPECT_NEAR(time.waiting, 3 * 9, 1e-9);
  EXPECT_NEAR(time.of(TimeKind::kProducts), 8 * 6, 1e-9);
}

// A slow last stage delays the others: each micro-batch takes its 27 seconds, after one forward of
// the first stage and before one of its backwards.
TEST(StepTime, SlowLastStage_SetsThePace) {
  Forecast f = pipeline(2, 8);
  for (auto& [action, work] : f.ranks[1].actions) work.products[kProduct] *= 3;
  EXPECT_NEAR(step_time(f, {.pp = 2}, round_machine()).total(), 3 + 8 * 27 + 6, 1e-9);
}

// Four ranks on two CPUs take twice as long. A pipeline's ranks use the time in which others wait:
// 4 ranks x 72 seconds on 3 CPUs are less than the 99 seconds of the pipeline.
TEST(StepTime, MoreRanksThanCpus_ShareThem) {
  Machine m = round_machine();
  m.num_cpus = 2;
  const StepTime time = step_time(pipeline(1, 2), {.dp = 2, .tp = 2}, m);
  expect_near(time.kinds, kinds(24, 0, 0, 0, 12));
  m.num_cpus = 4;
  EXPECT_NEAR(step_time(pipeline(1, 2), {.dp = 2, .tp = 2}, m).total(), 18, 1e-12);
  m.num_cpus = 3;
  EXPECT_NEAR(step_time(pipeline(4, 8), {.pp = 4}, m).total(), 99, 1e-9);
}

const char* const kLlama = R"json({"model_type": "llama", "vocab_size": 40, "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": true})json";
constexpr int64_t kTokens = 48, kHidden = 64, kFfn = 96, kKeys = 32, kVocab = 40;

RankForecast llama(int64_t layers, const ParallelConfig& layout = {}) {
  auto json = nlohmann::json::parse(kLlama);
  json["num_hidden_layers"] = layers;
  const StepShape step{.batch_size = 6, .micro_batch_size = 6, .seq_len = 8};
  return forecast(Json::parse(json.dump(), "config.json"), layout, step).ranks.at(0);
}

double flops_of(const RankForecast& rank) {
  double sum = 0;
  for (const auto& [action, work] : rank.actions) {
    for (const auto& [shape, count] : work.products) sum += count * shape.flops();
  }
  return sum;
}

// 2 operations for each weight of a matrix and token in forward, 4 in backward.
TEST(Forecast, Products_HaveTheFlopsOfTheMatrices) {
  const double layer = kHidden * (2 * kHidden + 2 * kKeys) + 3 * kHidden * kFfn;
  const double head = kVocab * kHidden;
  EXPECT_DOUBLE_EQ(flops_of(llama(4)), 6.0 * kTokens * (4 * layer + head));
  // All layers once more.
  EXPECT_DOUBLE_EQ(flops_of(llama(4, {.recompute = RecomputeKind::kFull})),
                   6.0 * kTokens * (4 * layer + head) + 2.0 * kTokens * 4 * layer);
}

TEST(Forecast, Attention_RunsOnceForwardAndOnceBackwardPerLayer) {
  std::map<AttentionWork, double> all;
  for (const auto& [action, work] : llama(4).actions) {
    for (const auto& [shape, count] : work.attention) all[shape] += count;
  }
  AttentionWork shape{.batch = 6,
                      .heads = 4,
                      .kv_heads = 2,
                      .queries = 8,
                      .keys = 8,
                      .width = 16,
                      .is_causal = true};
  AttentionWork backward = shape;
  backward.is_backward = true;
  EXPECT_EQ(all, (std::map<AttentionWork, double>{{shape, 4}, {backward, 4}}));
}

TEST(Forecast, AttentionWithDropout_IsCountedAsSuch) {
  auto json = nlohmann::json::parse(kLlama);
  json["attention_dropout"] = 0.1;
  const StepShape step{.batch_size = 6, .micro_batch_size = 6, .seq_len = 8};
  const Forecast with = forecast(Json::parse(json.dump(), "config.json"), {}, step);
  double count = 0;
  for (const auto& [action, work] : with.ranks.at(0).actions) {
    for (const auto& [shape, times] : work.attention) {
      EXPECT_TRUE(shape.has_dropout);
      count += times;
    }
  }
  EXPECT_EQ(count, 2 * 4);  // forward and backward of four layers
}

// A layer more. Forward: two norms read the two terms of their input's sum and write the sum and
// its norm; the rotation of queries and keys reads one tensor; the gate, of the feed-forward width,
// two. What is written counts twice.
TEST(Forecast, Passes_MoveTheBytesOfALayersActivations) {
  const std::pair<Action::Kind, int> forward{Action::Kind::kForward, 0};
  const double more =
      llama(5).actions.at(forward).moved_bytes() - llama(4).actions.at(forward).moved_bytes();
  EXPECT_DOUBLE_EQ(more, 4.0 * kTokens * (12 * kHidden + 3 * (kHidden + kKeys) + 4 * kFfn));
}

// AdamW reads weight, gradient and two moments, and writes all but the gradient; in bf16 also the
// copy that forward reads. ZeRO-1 does so with its half.
TEST(Forecast, Optimizer_MovesSevenNumbersPerWeight) {
  const double weights =
      kVocab * kHidden + kHidden +
      4.0 * (kHidden * (2 * kHidden + 2 * kKeys) + 3 * kHidden * kFfn + 2 * kHidden);
  EXPECT_DOUBLE_EQ(llama(4).optimizer_bytes, 28 * weights);
  EXPECT_DOUBLE_EQ(llama(4, {.compute_type = at::kBFloat16}).optimizer_bytes, 30 * weights);
  const RankForecast half = llama(4, {.dp = 2, .sharding = DataSharding::kZero1});
  EXPECT_NEAR(half.optimizer_bytes, 14 * weights, 64 * 28);
}

// A GPU: rank.flops is all that is known, and attention is most of a step of long sequences.
TEST(StepTime, OnGpus_HasProductsAndAttention) {
  Machine gpu;
  gpu.rank.flops = 1000;
  Forecast f = pipeline(1, 2);  // 3 products of 2000 flops for each micro-batch
  AttentionWork shape = kAttention;
  f.ranks[0].actions.at({Action::Kind::kForward, 0}).attention[shape] = 10;
  shape.is_backward = true;
  f.ranks[0].actions.at({Action::Kind::kBackward, 0}).attention[shape] = 10;
  expect_near(step_time(f, {}, gpu).kinds, kinds(2 * 6, 2 * 10 * 7 * 1.024, 0, 0, 0));
}

/// The seconds of a product when at most `most_flops` of it are measured.
double product_s(const Axis& axis, const MatrixWork& shape, double most_flops) {
  OpWork work;
  work.products[shape] = 1;
  constexpr double kLongestS = 0.008;
  return measure_work(axis, work, most_flops / kLongestS, 1 << 10).products.at(shape).far[0];
}

// Oracle: the time of the whole product. Without the factor of 64 a part would take 1/64 of it.
TEST(MeasureMachine, LargeProduct_TakesTheTimeOfAllItsParts) {
  const MatrixWork shape{.rows = 512, .inner = 512, .columns = 512};
  test::on_ranks(1, [&](const Axis& axis) {
    const double whole = product_s(axis, shape, shape.flops());
    const double of_part = product_s(axis, shape, shape.flops() / 64);
    EXPECT_GT(of_part, whole / 8);
    EXPECT_LT(of_part, whole * 8);
  });
}

// Measured apart, two times of about a millisecond would not have this ratio.
TEST(MeasureMachine, ProductsWithTheSamePart_ShareItsTime) {
  const MatrixWork small{.rows = 512, .inner = 512, .columns = 512};
  const MatrixWork large{.rows = 1024, .inner = 512, .columns = 512};
  const double most_flops = small.flops() / 8;
  ASSERT_EQ(part_of(small, most_flops), part_of(large, most_flops));
  OpWork work;
  work.products = {{small, 1}, {large, 1}};
  test::on_ranks(1, [&](const Axis& axis) {
    constexpr double kLongestS = 0.008;
    const auto products = measure_work(axis, work, most_flops / kLongestS, 1 << 10).products;
    EXPECT_DOUBLE_EQ(products.at(large).near[0], 2 * products.at(small).near[0]);
    EXPECT_DOUBLE_EQ(products.at(large).far[0], 2 * products.at(small).far[0]);
  });
}

// As Linux shows two CPUs that share a cache of 32 MiB, one with a cache of 16 MiB, and one that is
// switched off. Source: the kernel's documentation, ABI/testing/sysfs-devices-system-cpu.
TEST(MeasureMachine, LastCache_IsTheSumOfTheCachesThatCpusShare) {
  const test::TempFolder root;
  EXPECT_EQ(last_cache_bytes(root.path()), 0);
  const auto add_cpu = [&](const std::string& cpu, const std::string& cpus,
                           const std::string& size) {
    const auto folder = root.path() / "sys/devices/system/cpu" / cpu / "cache/index3";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "shared_cpu_list") << cpus << '\n';
    std::ofstream(folder / "size") << size << '\n';
  };
  add_cpu("cpu0", "0-1", "32768K");
  add_cpu("cpu1", "0-1", "32768K");
  std::filesystem::create_directories(root.path() / "sys/devices/system/cpu/cpu2");
  add_cpu("cpu3", "3", "16384K");
  EXPECT_EQ(last_cache_bytes(root.path()), 48 << 20);
  add_cpu("cpu4", "4", "large");
  EXPECT_EQ(last_cache_bytes(root.path()), 48 << 20);
}

/// Sets variables of a launcher while it exists.
class Launcher {
 public:
  explicit Launcher(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) {
      ::setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  ~Launcher() {
    for (const auto& [name, value] : variables_) {
      ::unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

TEST(MeasureMachine, Cpus_AreThoseOfAllHosts) {
  const auto num_cpus = [] {
    int out = 0;
    test::on_ranks(4, [&](const Axis& axis) {
      const Machine m = measure_machine(axis, at::kFloat, at::kCPU, {.rank_bytes = 1 << 10});
      if (axis.rank() == 0) out = m.num_cpus;
    });
    return out;
  };
  EXPECT_EQ(num_cpus(), cpus_here());
  {
    const Launcher two_hosts({{"RANK", "0"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "localhost"},
                              {"MASTER_PORT", "29500"}});
    EXPECT_EQ(num_cpus(), 2 * cpus_here());
  }
  // The threads of one rank of a launcher.
  const Launcher one_rank({{"RANK", "0"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "1"},
                           {"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", "29500"}});
  EXPECT_EQ(num_cpus(), cpus_here());
}

// Four ranks: more than many machines have CPUs for. All have the speeds of the slowest one.
TEST(MeasureMachine, EverySizeOfTheWork_IsMeasuredForAllRanks) {
  MeasuredRun run{.rank_bytes = 1 << 20};
  run.work.products[kProduct] = 1;
  MatrixWork transposed{
      .batch = 2, .rows = 8, .inner = 4, .columns = 8, .is_second_transposed = true};
  run.work.products[transposed] = 1;
  AttentionWork backward = kAttention;
  backward.is_backward = true;
  AttentionWork with_dropout = kAttention;
  with_dropout.has_dropout = true;
  run.work.attention = {{kAttention, 1}, {backward, 1}, {with_dropout, 1}};
  std::array<WorkSpeed, 4> of_ranks{};
  test::on_ranks(4, [&](const Axis& axis) {
    const Machine m = measure_machine(axis, at::kFloat, at::kCPU, run);
    of_ranks.at(static_cast<size_t>(axis.rank())) = m.rank;
    EXPECT_EQ(m.rank.products.size(), 2U);
    EXPECT_EQ(m.rank.attention.size(), 3U);
    for (const auto& [shape, seconds] : m.rank.products) EXPECT_GT(seconds.near[0], 0);
    EXPECT_EQ(m.rank.memory.size(), 2U);  // of 256 KiB and 1 MiB
    for (const MemorySpeed& speed : m.rank.memory) EXPECT_GT(speed.bytes_per_s, 0);
    EXPECT_GT(m.rank.operation_s, 0);
    EXPECT_GT(m.rank.random_number_s, 0);
    EXPECT_GE(m.num_cpus, 1);
  });
  // Two runs of this length hardly ever take the same number of nanoseconds.
  for (const WorkSpeed& speed : of_ranks) {
    for (const auto& [shape, seconds] : of_ranks[0].products) {
      EXPECT_EQ(speed.products.at(shape).near, seconds.near);
      EXPECT_EQ(speed.products.at(shape).far, seconds.far);
    }
    EXPECT_EQ(speed.attention, of_ranks[0].attention);
    EXPECT_EQ(speed.memory.back().bytes_per_s, of_ranks[0].memory.back().bytes_per_s);
    EXPECT_EQ(speed.operation_s, of_ranks[0].operation_s);
  }
}

}  // namespace
}  // namespace cleave::step_time_test
