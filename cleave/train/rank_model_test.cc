#include "cleave/train/rank_model.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "tests/support/ranks.h"

namespace cleave::rank_model_test {
namespace {

const char* const kConfig = R"json({"model_type": "llama", "vocab_size": 19, "hidden_size": 12,
  "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3,
  "num_key_value_heads": 3, "head_dim": 4, "max_position_embeddings": 16})json";

/// Loss and gradient norm of one batch.
std::pair<double, double> gradients(const ParallelConfig& sizes, double loss_scale) {
  std::pair<double, double> out;
  run_ranks(sizes.num_ranks(), [&](World& world) {
    auto model = make_model(Json::parse(kConfig, "config.json"));
    ParallelConfig layout = sizes;
    layout.plan = model->plan();
    const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
    RankModel rank(std::move(model), layout, mesh, world);
    materialize(rank.model(), {.seed = 1});
    rank.refresh_weights();
    Batch batch;
    batch.ids = test::ids({2, 6}, 19, 1);
    batch.labels = batch.ids;
    const PassResult pass = rank.train_pass(micro_batches_of(batch, 2, 1), 0, 0, loss_scale);
    if (world.rank() == 0) out = {pass.loss, pass.norm.value};
  });
  return out;
}

// Oracle: fp32 without a loss scale. The tolerance is fp16's 11 bits over two layers.
TEST(RankModel, ScaledLossInFp16_GivesTheGradientsAndLossOfFp32) {
  const auto want = gradients({}, 1);
  EXPECT_NEAR(gradients({}, 4096).second, want.second, 1e-5 * want.second);  // fp32, scaled
  for (const ParallelConfig& sizes :
       {ParallelConfig{}, ParallelConfig{.tp = 3}, ParallelConfig{.pp = 2}}) {
    ParallelConfig half = sizes;
    half.compute_type = at::kHalf;
    const auto got = gradients(half, 4096);
    EXPECT_NEAR(got.first, want.first, 0.01 * want.first) << half.describe();
    EXPECT_NEAR(got.second, want.second, 0.02 * want.second) << half.describe();
  }
}

TEST(RankModel, ScaleThatOverflowsFp16_MakesTheNormNotFinite) {
  EXPECT_TRUE(std::isfinite(gradients({.compute_type = at::kHalf}, 4096).second));
  EXPECT_FALSE(std::isfinite(gradients({.compute_type = at::kHalf}, 1e12).second));
}

}  // namespace
}  // namespace cleave::rank_model_test
