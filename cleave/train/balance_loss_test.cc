// The auxiliary loss of experts in training. Oracle of values: transformers with
// output_router_logits (tests/golden/make_models.py). Oracle of layouts: one rank in fp64.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "cleave/train/rank_model.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::balance_loss_test {
namespace {

using test::TempFolder;

constexpr int64_t kRows = 4;

/// Layouts of one micro-batch, on which the loss is that of the whole batch.
std::vector<ParallelConfig> layouts() {
  const auto recompute = [](RecomputeKind kind) { return ParallelConfig{.recompute = kind}; };
  return {{},
          {.tp = 2},
          {.tp = 3, .sequence_parallel = true},
          {.pp = 2},
          {.pp = 2, .tp = 2, .sequence_parallel = true, .recompute = RecomputeKind::kFull},
          {.pp = 2, .schedule = ScheduleKind::kGpipe},
          {.pp = 2, .schedule = ScheduleKind::kZeroBubble},
          {.stages_per_rank = 2, .schedule = ScheduleKind::kInterleaved},
          recompute(RecomputeKind::kFull),
          recompute(RecomputeKind::kSelective)};
}

/// Layouts on which each data-parallel rank has half of the batch.
std::vector<ParallelConfig> layouts_of_halves() {
  return {{.dp = 2},
          {.dp = 2, .tp = 2, .sharding = DataSharding::kZero1},
          {.dp = 2, .sharding = DataSharding::kFsdp, .recompute = RecomputeKind::kFull},
          {.pp = 2, .dp = 2, .sharding = DataSharding::kFsdp}};
}

/// A golden model on one rank of a layout.
class Trained {
 public:
  Trained(const std::string& golden, ParallelConfig layout, World& world) : dp_size_(layout.dp) {
    const std::string folder = test::golden_folder(golden);
    auto model = make_model(Json::parse_file(folder + "/config.json"));
    layout.plan = model->plan(layout.sequence_parallel);
    mesh_ = std::make_unique<Mesh>(
        Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}}));
    rank_ =
        std::make_unique<RankModel>(std::move(model), layout, *mesh_, world, test::kGoldenAdamW);
    load_model(rank_->model(), ModelFolder::open(folder), at::kFloat);
    rank_->refresh_weights();
  }

  RankModel& rank() { return *rank_; }

  /// The results of all data-parallel ranks together.
  struct Passed {
    double loss, aux, norm;
  };
  /// Runs a step in micro-batches of `size` rows.
  Passed pass(const Tensor& ids, const Tensor& labels, const Tensor& mask, int64_t size) {
    Batch batch;
    batch.ids = ids;
    batch.labels = labels;
    if (mask.defined()) batch.attention_mask = mask.to(at::kBool);
    const int64_t rows = kRows / dp_size_;
    const Axis& dp = (*mesh_)["dp"];
    const Batch own = batch.rows(rows * dp.rank(), rows * (dp.rank() + 1));
    rank_->optimizer().zero_grad();
    // One more than there are: it repeats the first row, which must add nothing.
    const PassResult pass = rank_->train_pass(micro_batches_of(own, size, rows / size + 1), 0, 0);
    const Tensor sums =
        dp.all_reduce(at::tensor({pass.loss, pass.aux_loss.value()}, at::kDouble), "test");
    return {.loss = sums[0].item<double>(), .aux = sums[1].item<double>(), .norm = pass.norm.value};
  }

  /// Expects the gradients of the answer `key`. Flat shards (ZeRO-1, FSDP) are left out, because an
  /// answer has projections; BalanceRun compares their norm.
  void expect_gradients(const test::Tensors& golden, const std::string& key) {
    for (const auto& p : rank_->parameters()) {
      if (p->leaf().sizes() != at::IntArrayRef(p->local_shape())) continue;
      EXPECT_LE(test::golden_difference(golden, key, *p, p->leaf().grad()), 1e-5) << p->name();
    }
  }

 private:
  int64_t dp_size_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<RankModel> rank_;
};

class BalanceGolden : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] double number(const std::string& key, int64_t at = 0) const {
    return golden_.at(key)[at].item<double>();
  }
  test::Tensors golden_ = test::golden_answers(GetParam());
};

// Bounds: those of the golden models (tests/support/golden_model.h).
TEST_P(BalanceGolden, OneMicroBatch_GivesLossAndGradientsOfTheWholeBatch) {
  for (const ParallelConfig& layout : layouts()) {
    SCOPED_TRACE(layout.describe());
    run_ranks(layout.num_ranks(), [&](World& world) {
      Trained model(GetParam(), layout, world);
      for (const std::string prefix : {"", "pad."}) {
        const Tensor mask = prefix.empty() ? Tensor() : golden_.at("pad.input.attention_mask");
        const auto [loss, aux, norm] = model.pass(golden_.at(prefix + "input.input_ids"),
                                                  golden_.at(prefix + "input.labels"), mask, kRows);
        EXPECT_NEAR(loss, number(prefix + "loss"), 1e-5);
        EXPECT_NEAR(aux, number(prefix + "aux_loss"), 1e-5);
        model.expect_gradients(golden_, prefix + "grad");
      }
    });
  }
}

// The halves have different numbers of labels, by which their losses are weighted.
TEST_P(BalanceGolden, HalvesOfTheBatch_GiveTheMeanOfTheirLosses) {
  std::vector<ParallelConfig> all = layouts();
  const auto more = layouts_of_halves();
  all.insert(all.end(), more.begin(), more.end());
  for (const ParallelConfig& layout : all) {
    SCOPED_TRACE(layout.describe());
    run_ranks(layout.num_ranks(), [&](World& world) {
      Trained model(GetParam(), layout, world);
      const auto [loss, aux, norm] =
          model.pass(golden_.at("pad.input.input_ids"), golden_.at("pad.input.labels"),
                     golden_.at("pad.input.attention_mask"), kRows / 2);
      EXPECT_NEAR(loss, number("halves.loss"), 1e-5);
      EXPECT_NEAR(aux, number("halves.aux_loss"), 1e-5);
      model.expect_gradients(golden_, "halves.grad");
    });
  }
}

TEST_P(BalanceGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  for (const ParallelConfig& layout : layouts()) {
    SCOPED_TRACE(layout.describe());
    run_ranks(layout.num_ranks(), [&](World& world) {
      Trained model(GetParam(), layout, world);
      for (int64_t step = 0; step < 3; ++step) {
        const auto [loss, aux, norm] = model.pass(golden_.at("train.input_ids")[step],
                                                  golden_.at("train.labels")[step], {}, kRows);
        EXPECT_NEAR(loss, number("adamw.loss", step), 1e-5) << step;
        EXPECT_NEAR(norm, number("adamw.grad_norm", step), 1e-5 * std::max(1.0, norm)) << step;
        model.rank().step(1e-3);
      }
      for (const auto& p : model.rank().parameters()) {
        EXPECT_LE(test::golden_difference(golden_, "adamw.step3", *p, p->leaf()), 1e-4)
            << p->name();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BalanceGolden, ::testing::Values("mixtral-aux", "qwen3-moe-aux"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// A run on rows of unequal length.
class BalanceRun : public ::testing::Test {
 protected:
  BalanceRun() {
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int row = 0; row < 12; ++row) {
      rows << "{\"input_ids\": [";
      for (int i = 0; i < 4 + row % 5; ++i)
        rows << (i == 0 ? "" : ", ") << 4 + (7 * row + 3 * i) % 70;
      rows << "]}\n";
    }
  }

  [[nodiscard]] TrainOptions options(const std::string& name) const {
    TrainOptions o;
    o.model = test::golden_folder("mixtral-aux");
    o.data = {folder_ / "rows.jsonl"};
    o.out = folder_ / name;
    o.seq_len = 16;
    o.batch_size = 4;
    o.micro_batch_size = 2;
    o.steps = 3;
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  TempFolder folder_;
};

// All have micro-batches of the same two rows. In bf16 rounding may give some of the about 40
// tokens of both layers another expert. Each moves two f_e by 1/40, which have probabilities of at
// most 1, and changes the loss of one token; a missing or doubled loss of 2 would change the loss
// by 1.
TEST_F(BalanceRun, AnyLayout_ReportsTheLossesOfOneRank) {
  const auto run = [&](const std::string& name, const std::string& dtype, const auto& change) {
    TrainOptions o = options(name + dtype);
    o.dtype = dtype;
    change(o);
    return test::steps_of(o);
  };
  const auto exact = run("one", "fp64", [](TrainOptions& /*o*/) {});
  ASSERT_EQ(exact.size(), 3U);
  const auto compare = [&](const std::string& name, const auto& change) {
    const auto same = run(name, "fp64", change);
    const auto near = run(name, "bf16", change);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(same[i].loss, exact[i].loss, 1e-9) << name << i;
      EXPECT_NEAR(*same[i].aux_loss, *exact[i].aux_loss, 1e-9) << name << i;
      EXPECT_NEAR(same[i].grad_norm, exact[i].grad_norm, 1e-8) << name << i;
      EXPECT_NEAR(near[i].loss, exact[i].loss, 0.3) << name << i;
      EXPECT_NEAR(*near[i].aux_loss, *exact[i].aux_loss, 0.3) << name << i;
    }
  };
  compare("tp", [](TrainOptions& o) { o.tp = 2, o.sequence_parallel = true; });
  compare("pp", [](TrainOptions& o) { o.pp = 2, o.recompute = "full"; });
  compare("dp", [](TrainOptions& o) { o.dp = 2, o.zero = 1; });
  compare("ep", [](TrainOptions& o) { o.dp = 2, o.ep = 2, o.zero = 1; });
  compare("fsdp", [](TrainOptions& o) { o.dp = 2, o.pp = 2, o.fsdp = true; });
}

// Oracle: in the first step the loss without the auxiliary loss, plus half of that.
TEST_F(BalanceRun, Loss_ContainsTheAuxiliaryLoss) {
  const auto steps = test::steps_of(options("with"));
  TrainOptions o = options("without");
  o.model = folder_ / "model";
  std::filesystem::copy(test::golden_folder("mixtral-aux"), folder_ / "model");
  const std::string path = folder_ / "model/config.json";
  auto config = nlohmann::ordered_json::parse(std::ifstream(path));
  config["output_router_logits"] = false;
  std::ofstream(path) << config;
  const auto others = test::steps_of(o);
  EXPECT_FALSE(others[0].aux_loss);
  EXPECT_NEAR(steps[0].loss, others[0].loss + 0.5 * *steps[0].aux_loss, 1e-5);
}

}  // namespace
}  // namespace cleave::balance_loss_test
