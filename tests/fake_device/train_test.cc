// Training on fake devices, compared with one rank on the CPU in fp64. The bound is that of
// train/grid_test.cc: sums of a few thousand products in another order, 2^-53 times their number,
// times a factor of about a hundred for the error growth over eight layers and three steps.
#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/run_folder.h"
#include "tests/fake_device/on_fake_device.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/train_grid.h"

namespace cleave::fake_train_test {
namespace {

using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::Point;

const fake_device::RegisterFirst kRegistered;
constexpr double kTolerance = 1e-9;

/// Steps of one rank on the CPU, made once.
const GridRecord& on_cpu(const GridCase& c) {
  static std::map<std::string, GridRecord> known;
  const auto [place, is_new] = known.try_emplace(c.describe());
  if (is_new) place->second = test::record_of_one_rank(c);
  return place->second;
}

/// As Checkpointer::load_weights does: weights are made on the CPU and moved.
void start_on(at::Device device, GridRunner& run, bool has_magnitudes = false) {
  materialize(run.rank().model(), {.seed = 3, .dtype = at::kDouble});
  move_to(run.rank().model(), device);
  if (has_magnitudes) start_magnitudes(run.rank().model(), at::kDouble);
  run.rank().refresh_weights();
}

/// What the host may wait for in a step: the gradient norm, behind the losses; and in each layer
/// with experts, for each micro-batch, the number of each expert's rows, and the auxiliary loss.
int64_t most_waits(const GridCase& c) {
  constexpr int64_t kMicroBatches = 3;
  if (c.family == "mixtral") return 2 + 8 * kMicroBatches;
  if (c.family == "qwen3_moe") return 2 + 4 * kMicroBatches;
  return 1;
}

void expect_weights(const Parameters& parameters, const GridRecord& want) {
  for (const auto& p : parameters) {
    const Tensor whole = p->part_of(want.weights.at(p->name()));
    if (whole.numel() == 0) continue;
    const Tensor difference = p->leaf().detach().to(at::kCPU) - whole;
    EXPECT_LE(difference.abs().max().item<double>(), kTolerance) << p->name();
  }
}

/// All steps on devices, from `from` on.
void expect_steps(GridRunner& run, const GridCase& c, int64_t from, int rank) {
  const GridRecord& want = on_cpu(c);
  for (int64_t step = from; step < test::kGridSteps; ++step) {
    const auto before = fake_device::counts_of(rank);
    const auto [loss, norm] = run.gradients(step);
    run.apply();
    const fake_device::Counts waited = fake_device::counts_of(rank) - before;
    const auto i = static_cast<size_t>(step);
    EXPECT_NEAR(loss, want.losses[i], kTolerance);
    EXPECT_NEAR(norm, want.norms[i], kTolerance);
    // The first step fills caches.
    if (step > from) {
      EXPECT_LE(waited.waits(), most_waits(c)) << waited.reads << " reads, " << waited.uploads
                                               << " uploads, " << waited.messages << " messages";
    }
  }
  expect_weights(trained_of(run.rank().parameters()), want);
}

void expect_as_on_cpu(const GridCase& c, const Point& point) {
  SCOPED_TRACE(describe(point, c));
  (void)on_cpu(c);  // before the ranks use it
  test::on_world(point.num_ranks(), [&](World& world) {
    const at::Device device = fake_device::take_device(world);
    GridRunner run(c, point, world);
    start_on(device, run, c.lora && c.lora->is_dora);
    expect_steps(run, c, 0, world.rank());
  });
}

class TrainOnDevice : public testing::TestWithParam<std::string> {};

TEST_P(TrainOnDevice, EveryLayout_HasTheCpusLossesAndFewWaits) {
  const GridCase c{.family = GetParam()};
  using enum RecomputeKind;
  for (const Point& point : std::vector<Point>{{},
                                               {.tp = 2},
                                               {.tp = 2, .sp = 1, .recompute = kSelective},
                                               {.pp = 2},
                                               {.pp = 2, .virtual_stages = 2, .recompute = kFull},
                                               {.dp = 2},
                                               {.dp = 2, .sharding = 1},
                                               {.dp = 2, .sharding = 2}}) {
    expect_as_on_cpu(c, point);
  }
}
INSTANTIATE_TEST_SUITE_P(Family, TrainOnDevice, testing::Values("llama", "gpt2", "bert"),
                         [](const auto& test) { return test.param; });

class OtherFamilyOnDevice : public testing::TestWithParam<std::string> {};

TEST_P(OtherFamilyOnDevice, TensorParallel_HasTheCpusLossesAndFewWaits) {
  expect_as_on_cpu({.family = GetParam()}, {.tp = 2});
}
INSTANTIATE_TEST_SUITE_P(Family, OtherFamilyOnDevice,
                         testing::Values("qwen2", "qwen3", "mistral", "gemma2", "gemma3_text",
                                         "phi3", "olmo2", "smollm3", "mixtral", "qwen3_moe"),
                         [](const auto& test) { return test.param; });

TEST(TrainOnDevice, Adapters_HaveTheCpusLossesAndFewWaits) {
  const LoraOptions plain{.rank = 2, .dropout = 0.2};
  LoraOptions int8{.rank = 2, .is_dora = true, .base_form = QuantizedForm::kInt8};
  LoraOptions nf4 = int8;
  nf4.base_form = QuantizedForm::kNf4;
  for (const LoraOptions& lora : {plain, int8, nf4}) {
    const GridCase c{.family = "llama", .lora = lora};
    for (const Point& point : std::vector<Point>{
             {}, {.tp = 2}, {.pp = 2}, {.dp = 2, .sharding = 1}, {.dp = 2, .sharding = 2}}) {
      expect_as_on_cpu(c, point);
    }
  }
}

// A GPU's kernels would end the process.
TEST(TrainOnDevice, WrongIdOrLabel_IsFoundWithoutThem) {
  test::on_world(1, [](World& world) {
    const at::Device device = fake_device::take_device(world);
    const GridCase c{.family = "llama"};
    GridRunner run(c, {}, world);
    start_on(device, run);
    Batch batch = test::grid_batch(c, 0, {0, 2});
    batch.ids[0][1] = test::kGridVocab;
    const auto train = [&] { return run.rank().train_pass({&batch, 1}, 9, 0, 1); };
    const Error error = test::thrown_by([&] { (void)train(); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_EQ(std::string(error.what()),
              "the batch: id 23 is outside [0, 23); check that the tokenizer matches the model");
    batch.ids[0][1] = 0;
    batch.labels[0][1] = test::kGridVocab;
    EXPECT_TRUE(std::isnan(train().loss));
  });
}

/// Saves after a step on devices or on the CPU, and continues on the other.
void expect_resumed(const Point& saved, const Point& resumed, bool begins_on_device) {
  const GridCase c{.family = "llama"};
  (void)on_cpu(c);  // before the ranks use it
  const test::TempFolder folder;
  const std::string at = folder / "checkpoint";
  const auto device_of = [&](World& world, bool is_device) {
    return is_device ? fake_device::take_device(world) : at::Device(at::kCPU);
  };
  test::on_world(saved.num_ranks(), [&](World& world) {
    const at::Device device = device_of(world, begins_on_device);
    GridRunner run(c, saved, world);
    start_on(device, run);
    (void)run.gradients(0);
    run.apply();
    test::save(run, world, at);
  });
  test::on_world(resumed.num_ranks(), [&](World& world) {
    const at::Device device = device_of(world, !begins_on_device);
    GridRunner run(c, resumed, world);
    load_model(run.rank().model(), ModelFolder::open(at), at::kDouble);
    move_to(run.rank().model(), device);
    load_optimizer(run.rank().optimizer(), run.rank().model(), at);
    run.rank().refresh_weights();
    expect_steps(run, c, 1, world.rank());
  });
}

TEST(ResumeOnDevice, CheckpointOfADevice_ContinuesOnTheCpu) {
  expect_resumed({.tp = 2}, {}, true);
  expect_resumed({.dp = 2, .sharding = 2}, {.pp = 2}, true);
}

TEST(ResumeOnDevice, CheckpointOfTheCpu_ContinuesOnDevices) {
  expect_resumed({}, {.dp = 2, .sharding = 1}, false);
  expect_resumed({.pp = 2}, {.tp = 2}, false);
}

}  // namespace
}  // namespace cleave::fake_train_test
