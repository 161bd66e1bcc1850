// The dry run of each rank of a layout, compared with the collectives that a real step makes.
#include "cleave/planner/dry_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/parallelize.h"
#include "tests/support/counting_group.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::dry_run_test {
namespace {

const char* const kLlama = R"json({"model_type": "llama", "vocab_size": 40, "hidden_size": 16,
  "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": true})json";
const StepShape kStep{.batch_size = 8, .micro_batch_size = 2, .seq_len = 8};

/// Counts the collectives of the axes that it made.
class CountedAxes {
 public:
  Axis counted(const Axis& axis) {
    if (axis.size() == 1) return axis;
    const auto group = std::make_shared<test::CountingGroup>(axis.group());
    groups_[axis.name()] = group;
    return Axis(group);
  }

  /// By axis and kind, since the last call.
  std::map<std::string, DryCalls> taken() {
    std::map<std::string, DryCalls> out;
    for (const auto& [axis, group] : groups_) {
      auto bytes = group->taken_bytes();
      for (const auto& [name, count] : group->taken()) {
        std::string kind = name;
        std::replace(kind.begin(), kind.end(), '_', '-');
        out[axis][kind] = {.num_calls = count, .bytes = bytes[name]};
      }
    }
    return out;
  }

 private:
  std::map<std::string, std::shared_ptr<test::CountingGroup>> groups_;
};

/// What this rank sends in a real step.
std::map<std::string, DryCalls> measured(World& world, const Json& config,
                                         const ParallelConfig& layout) {
  const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
  CountedAxes axes;
  const ParallelAxes counted{.pp = axes.counted(mesh["pp"]),
                             .dp = axes.counted(mesh["dp"]),
                             .tp = axes.counted(mesh["tp"])};
  const auto model = make_model(config);
  Parallelized p = parallelize(*model, model->sequence(), counted, layout);
  materialize(*model, {.dtype = layout.leaf_type()});
  p.gradients->refresh_weights();
  (void)axes.taken();
  std::vector<MicroBatch> inputs;
  Context context;
  context.training = true;
  const std::vector<int64_t> shape{kStep.micro_batch_size, kStep.seq_len};
  for (int64_t rows = 0; rows < kStep.batch_size / layout.dp; rows += kStep.micro_batch_size) {
    inputs.push_back(
        {.input = DTensor(test::ids(shape, 40, 1), counted.tp, Replicate{}), .context = context});
  }
  p.gradients->begin(inputs.size());
  p.pipeline->run_train(inputs, [&](const DTensor& logits, size_t) {
    return cross_entropy(logits, test::ids(shape, 40, 2), {.valid_tokens = kStep.tokens()}).local();
  });
  p.gradients->complete();
  p.optimizer->step(1e-3);
  return axes.taken();
}

void expect_equal(const DryCalls& dry, const DryCalls& real, const std::string& what) {
  for (const auto& [kind, traffic] : real) {
    const auto at = dry.find(kind);
    ASSERT_NE(at, dry.end()) << what << ": " << kind;
    EXPECT_EQ(at->second.num_calls, traffic.num_calls) << what << ": " << kind;
    EXPECT_EQ(at->second.bytes, traffic.bytes) << what << ": " << kind;
  }
  EXPECT_EQ(dry.size(), real.size()) << what;
}

void expect_dry_run(ParallelConfig layout) {
  const Json config = Json::parse(kLlama, "config.json");
  layout.plan = make_model(config)->plan(layout.sequence_parallel);
  std::vector<RankProgram> programs;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    programs.push_back(rank_program(config, layout, kStep, rank));
  }
  test::on_world(layout.num_ranks(), [&](World& world) {
    auto real = measured(world, config, layout);
    // Between stages the ranks also share the losses, which a dry run does not have.
    std::erase_if(real["pp"], [](const auto& each) { return each.first != "send"; });
    const RankProgram& program = programs[static_cast<size_t>(world.rank())];
    for (const auto& [axis, calls] : program.forecast.calls) {
      expect_equal(calls, real[axis],
                   str(layout.describe(), ", rank ", world.rank(), ", axis ", axis));
    }
  });
}

TEST(DryRun, OfEachRank_MakesTheCollectivesOfARealStep) {
  const auto zero1 = DataSharding::kZero1;
  const auto fsdp = DataSharding::kFsdp;
  expect_dry_run({.dp = 2, .tp = 2});
  expect_dry_run({.dp = 2, .tp = 2, .sequence_parallel = true, .sharding = fsdp});
  expect_dry_run({.dp = 2, .tp = 2, .sharding = zero1, .compute_type = at::kBFloat16});
  expect_dry_run({.pp = 2, .dp = 2, .sharding = fsdp, .recompute = RecomputeKind::kFull});
  expect_dry_run({.pp = 2, .tp = 2, .sequence_parallel = true});
  expect_dry_run({.pp = 4});
}

TEST(DryRun, LastOf16384Ranks_HasItsPlaceAndShare) {
  const Json config = Json::parse(kLlama, "config.json");
  const ParallelConfig layout{
      .pp = 4, .dp = 1024, .tp = 4, .plan = make_model(config)->plan(false)};
  const StepShape step{.batch_size = 1024, .micro_batch_size = 1, .seq_len = 8};
  const RankProgram program = rank_program(config, layout, step, 16383);
  EXPECT_EQ(program.place.pp, 3);
  EXPECT_EQ(program.place.dp, 1023);
  EXPECT_EQ(program.place.tp, 3);
  // Rank 4711 = (1 * 1024 + 153) * 4 + 3.
  const RankPlace place = place_of(4711, layout);
  EXPECT_EQ(place.pp, 1);
  EXPECT_EQ(place.dp, 153);
  EXPECT_EQ(place.tp, 3);
  // A quarter of four matrices of 16 x 16 and three of 16 x 32, and two norms; the last stage also
  // has the last norm and a quarter of the tied matrix.
  const int64_t block = (4 * 16 * 16 + 3 * 16 * 32) / 4 + 2 * 16;
  int64_t held = 0;
  for (const RankParameter& p : program.parameters) held += p.held;
  EXPECT_EQ(held, block + 16 + 40 * 16 / 4);
  // The rank sends (n - 1) / n of its gradients twice.
  const DryTraffic& sums = program.forecast.calls.at("dp").at("all-reduce");
  EXPECT_NEAR(static_cast<double>(sums.bytes), 2.0 * 4 * static_cast<double>(held),
              0.01 * static_cast<double>(sums.bytes));
}

TEST(DryRun, Json_HasTheCallsByAxis) {
  const Json config = Json::parse(kLlama, "config.json");
  const ParallelConfig layout{.tp = 2, .plan = make_model(config)->plan(false)};
  const auto json = nlohmann::json::parse(
      rank_program_json(rank_program(config, layout, kStep, 1), layout, kStep, 1));
  EXPECT_EQ(json["tp"], 1);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_GT(json["sent"]["tp"]["all-reduce"]["bytes"], 0);
  EXPECT_FALSE(json["sent"].contains("dp"));
}

}  // namespace
}  // namespace cleave::dry_run_test
