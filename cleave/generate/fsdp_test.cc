#include "cleave/parallel/fsdp.h"

#include <gtest/gtest.h>

#include "cleave/generate/generate.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"

namespace cleave::generate_fsdp_test {
namespace {

const std::vector<generation::Ids> kPrompts = {{1, 2, 3}, {5}};

std::unique_ptr<Model> llama() {
  return make_model(preset_config("llama-tiny", 40));
}

// Oracle: the same weights on one rank.
TEST(Generate, ModelWithFsdp_GivesTheIdsOfOneRank) {
  const auto whole = llama();
  materialize(*whole, {.seed = 3});
  const Generation want =
      generation::generate(*whole, Axis(), kPrompts, {.max_new_tokens = 6, .num_beams = 2});
  for (const int dp : {1, 2}) {
    run_ranks(dp, [&](World& world) {
      const Mesh mesh = Mesh::build(world, {{"dp", dp}});
      const auto model = llama();
      fully_shard(model->sequence(), mesh["dp"]);
      materialize(*model, {.seed = 3});
      const Generation got =
          generation::generate(*model, Axis(), kPrompts, {.max_new_tokens = 6, .num_beams = 2});
      for (size_t i = 0; i < kPrompts.size(); ++i) {
        EXPECT_EQ(got.prompts[i].front().ids, want.prompts[i].front().ids) << dp;
      }
    });
  }
}

}  // namespace
}  // namespace cleave::generate_fsdp_test
