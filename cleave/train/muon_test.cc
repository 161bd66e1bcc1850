// Muon and averaged weights on layouts whose ranks hold parts of a matrix, against one rank in fp64
// and, in the types that users train in, against the rule on the gathered gradient.
#include "cleave/optim/muon.h"

#include <cmath>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/pipeline/stages.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_grid.h"

namespace cleave::muon_test {
namespace {

using test::grid_model;
using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::on_world;
using test::Point;
using test::record_of_one_rank;

constexpr double kDecay = 0.9;

const std::vector<Point> kPoints = {
    {.tp = 2},
    {.tp = 3, .sp = 1},
    {.tp = 4},  // two ranks hold a copy of each KV head
    {.dp = 2},
    {.dp = 2, .sharding = 1},
    {.dp = 2, .sharding = 2},
    {.tp = 2, .dp = 2, .sharding = 1},
    {.tp = 2, .dp = 2, .sharding = 2},
    {.pp = 2, .dp = 2, .sharding = 2},
    {.tp = 2, .pp = 2, .virtual_stages = 2, .dp = 2, .sharding = 1}};

GridCase case_of(const std::string& family, int64_t head_dim = 2) {
  GridCase c{.family = family, .head_dim = head_dim};
  c.optimizer = {.kind = OptimizerOptions::Kind::kMuon, .weight_decay = 0.1, .ema = kDecay};
  return c;
}

/// The largest difference of this rank's part of whole tensors.
double difference(const Tensor& have, const Parameter& p, const Tensor& whole) {
  const Tensor wanted = p.part_of(whole);
  return wanted.numel() == 0 ? 0 : (have - wanted).abs().max().item<double>();
}

/// The averages by their definition, from the weights after each of three steps on one rank.
std::map<std::string, Tensor> averages_of_one_rank(const GridCase& c) {
  std::map<std::string, Tensor> sums;
  on_world(1, [&](World& world) {
    GridRunner run(c, {}, world);
    run.start();
    for (int64_t step = 0; step < test::kGridSteps; ++step) {
      run.gradients(step);
      run.apply();
      // 0.9^2 w1 + 0.1 x 0.9 w2 + 0.1 w3
      const double share = std::pow(kDecay, 2 - step) * (step == 0 ? 1 : 1 - kDecay);
      for (const auto& p : run.rank().parameters()) {
        Tensor& sum = sums[p->name()];
        const Tensor part = p->leaf().detach() * share;
        sum = sum.defined() ? sum + part : part;
      }
    }
  });
  return sums;
}

// A difference of a gradient's rounding grows by Muon's slope at 0, 485; the other sums are those
// of grid_test.cc, whose tolerance this is.
constexpr double kTolerance = 1e-9;

void expect_weights(GridRunner& run, const GridRecord& want,
                    const std::map<std::string, Tensor>& averages) {
  for (const Optimizer::State& state : run.rank().optimizer().states()) {
    const Parameter& p = *state.parameter;
    EXPECT_LE(difference(p.leaf().detach(), p, want.weights.at(p.name())), kTolerance) << p.name();
    EXPECT_LE(difference(state.ema, p, averages.at(p.name())), kTolerance) << p.name();
  }
}

class MuonLayouts : public testing::TestWithParam<std::string> {};

TEST_P(MuonLayouts, AnyLayout_TrainsAsOneRankDoes) {
  const GridCase c = case_of(GetParam());
  const GridRecord want = record_of_one_rank(c);
  const auto averages = averages_of_one_rank(c);
  for (const Point& point : kPoints) {
    SCOPED_TRACE(describe(point, c));
    on_world(point.num_ranks(), [&](World& world) {
      GridRunner run(c, point, world);
      run.start();
      for (int64_t step = 0; step < test::kGridSteps; ++step) {
        run.gradients(step);
        run.apply();
      }
      expect_weights(run, want, averages);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MuonLayouts, testing::Values("llama", "gpt2", "mixtral"),
                         [](const auto& param) { return param.param; });

TEST(MuonShards, SavedOnOneLayout_ResumesOnAnother) {
  const GridCase c = case_of("llama");
  const GridRecord want = record_of_one_rank(c);
  const auto averages = averages_of_one_rank(c);
  const std::vector<std::pair<Point, Point>> pairs = {{kPoints[7], kPoints[9]},
                                                      {kPoints[4], kPoints[1]}};
  for (const auto& [from, to] : pairs) {
    SCOPED_TRACE(describe(from, c) + " to " + describe(to, c));
    const test::TempFolder folder;
    save_first_step(c, from, folder / "saved");
    on_world(to.num_ranks(), [&](World& world) {
      GridRunner run(c, to, world);
      resume(run, folder / "saved");
      for (int64_t step = 1; step < test::kGridSteps; ++step) {
        run.gradients(step);
        run.apply();
      }
      expect_weights(run, want, averages);
    });
  }
}

/// Whole tensors, of which every rank writes its part.
class Wholes {
 public:
  void put(const Parameter& p, const Tensor& part) {
    const std::lock_guard lock(mutex_);
    Tensor& whole = wholes_[p.name()];
    if (!whole.defined()) whole = at::full(p.shape(), NAN, at::kFloat);
    const Tensor places = p.part_of(at::arange(p.numel(), at::kLong).view(p.shape()));
    whole.view(-1).index_put_({places.reshape(-1)}, part.reshape(-1).to(at::kFloat));
  }
  [[nodiscard]] const Tensor& at(const std::string& name) const { return wholes_.at(name); }

 private:
  std::mutex mutex_;
  std::map<std::string, Tensor> wholes_;
};

// In fp32 and bf16 the gradients of two layouts differ, and Muon lets small singular values grow.
// So the step is compared with the rule on the layout's own gradient, gathered: the first momentum
// is parallel to it. 20 roundings of 2^-24 times the slope 485.
TEST(MuonShards, StepInFp32AndBf16_IsThatOfTheWholeMatrices) {
  const GridCase c = case_of("llama", 16);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Point& point : {kPoints[2], kPoints[7], kPoints[9]}) {
      SCOPED_TRACE(describe(point, c));
      Wholes gradients, before, after;
      on_world(point.num_ranks(), [&](World& world) {
        GridRunner run(c, point, world, type);
        run.start();
        run.gradients(0);
        for (const auto& p : run.rank().parameters()) {
          gradients.put(*p, p->leaf().grad());
          before.put(*p, p->leaf().detach());
        }
        run.apply();
        for (const auto& p : run.rank().parameters()) after.put(*p, p->leaf().detach());
      });
      const auto model = grid_model(c);
      model->name_tree();
      int num_matrices = 0;
      for (const size_t block : blocks_of(model->sequence())) {
        for (const auto& p : model->sequence()[block]->parameters()) {
          if (p->shape().size() != 2) continue;
          ++num_matrices;
          const double rate = test::kGridRate;
          const int64_t longest = std::max(p->shape()[0], p->shape()[1]);
          const double size = 0.2 * std::sqrt(static_cast<double>(longest));
          const Tensor wanted = before.at(p->name()) * (1 - rate * 0.1) -
                                orthogonalized(gradients.at(p->name())) * (rate * size);
          const double error = (after.at(p->name()) - wanted).abs().max().item<double>();
          EXPECT_LE(error, 20 * 485 * 0x1p-24 * rate * size) << p->name();
        }
      }
      EXPECT_EQ(num_matrices, 8 * 7);
    }
  }
}

}  // namespace
}  // namespace cleave::muon_test
