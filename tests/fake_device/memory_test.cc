// The forecast of a step on a GPU. Oracle: the bytes that the fake device's allocator counts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/planner/forecast.h"
#include "cleave/runtime/plain_kernels.h"
#include "cleave/torch_internals/device_memory.h"
#include "cleave/train/rank_model.h"
#include "tests/fake_device/on_fake_device.h"
#include "tests/support/ranks.h"

namespace cleave::fake_memory_test {
namespace {

const fake_device::RegisterFirst registered;

constexpr int64_t kRows = 4, kTokens = 96;

/// Attention with dropout, whose probabilities a GPU keeps.
const char* const kGpt2 = R"json({"model_type": "gpt2", "vocab_size": 500, "n_embd": 48,
  "n_layer": 4, "n_head": 3, "n_positions": 128, "attn_pdrop": 0.1, "resid_pdrop": 0.1,
  "embd_pdrop": 0.1})json";

/// Peak bytes on the device of one rank in two steps.
int64_t measured(const Json& config, const ParallelConfig& layout) {
  int64_t peak = 0;
  test::on_world(1, [&](World& world) {
    const at::Device device = fake_device::take_device(world);
    const Mesh mesh = Mesh::build(world, {{"pp", 1}, {"dp", 1}, {"tp", 1}});
    RankModel rank(make_model(config), layout, mesh, world);
    materialize(rank.model(), {.dtype = layout.leaf_type()});
    DeviceMemory memory(at::kPrivateUse1);
    memory.reset_peak();
    const int64_t before = memory.peak();  // of other tests
    move_to(rank.model(), device);
    rank.refresh_weights();
    for (int64_t s = 0; s < 2; ++s) {
      Batch batch;
      batch.ids = test::ids({kRows, kTokens}, 500, 1);
      batch.labels = batch.ids;
      rank.optimizer().zero_grad();
      rank.train_pass({&batch, 1}, 0, s);
      rank.step(1e-3);
    }
    peak = memory.peak() - before;
  });
  return peak;
}

// The fake device has none of Cleave's kernels, so the dry run does without them too.
TEST(MemoryOnDevice, AttentionWithDropout_IsForecastWithItsProbabilities) {
  const PlainKernels none;
  const Json config = Json::parse(kGpt2, "config.json");
  ParallelConfig layout;
  layout.plan = make_model(config)->plan();
  const StepShape step{
      .batch_size = kRows, .micro_batch_size = kRows, .seq_len = kTokens, .is_on_gpu = true};
  const auto planned = static_cast<double>(forecast(config, layout, step).most_bytes());
  EXPECT_NEAR(planned / static_cast<double>(measured(config, layout)), 1, 0.1);
}

// With Cleave's kernels, which a CPU and a GPU both have but for attention: each layer's forward
// keeps the probabilities, and their form after dropout or the mask, in fp32.
TEST(MemoryOnDevice, AttentionWithDropout_NeedsMoreOnAGpu) {
  const Json config = Json::parse(kGpt2, "config.json");
  ParallelConfig layout;
  layout.plan = make_model(config)->plan();
  StepShape step{.batch_size = kRows, .micro_batch_size = kRows, .seq_len = kTokens};
  const int64_t on_cpu = forecast(config, layout, step).most_bytes();
  step.is_on_gpu = true;
  const int64_t scores = kRows * 3 * kTokens * kTokens * static_cast<int64_t>(sizeof(float));
  EXPECT_GT(forecast(config, layout, step).most_bytes(), on_cpu + 2 * 4 * scores);
}

}  // namespace
}  // namespace cleave::fake_memory_test
