#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "cleave/nn/norm.h"
#include "tests/support/model_parallel.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

namespace cleave::nxd_train_test {
namespace {

using test::largest_difference;
using test::leaf_of;
using test::numbers;
using test::on_model_parallel;
using test::thrown_by;

constexpr int64_t kIds = 11, kHidden = 6, kWide = 9;

/// An embedding, a pair of linears and a norm: row-sharded, column-sharded and replicated weights.
struct Model : LayerGroup {
  Model() {
    add("embed", embed);
    add("up", up);
    add("down", down);
    add("norm", norm);
  }
  Tensor operator()(const Tensor& ids) { return nxd::call(norm, down(up(embed(ids)).tanh())); }
  nxd::ParallelEmbedding embed{kIds, kHidden};
  nxd::ColumnParallelLinear up{kHidden, kWide, {.gather_output = false}};
  nxd::RowParallelLinear down{kWide, kHidden, {.input_is_parallel = true}};
  LayerNorm norm{kHidden, 1e-5};
};

const std::vector<std::pair<std::string, std::vector<int64_t>>> kShapes = {
    {"embed.weight", {kIds, kHidden}}, {"up.weight", {kWide, kHidden}}, {"up.bias", {kWide}},
    {"down.weight", {kHidden, kWide}}, {"down.bias", {kHidden}},        {"norm.weight", {kHidden}},
    {"norm.bias", {kHidden}}};

/// Sequences of the data-parallel rank `rank`, and the upstream gradient of their outputs.
Tensor ids_of(int rank) {
  return test::ids({2, 3}, kIds, static_cast<uint64_t>(50 + rank));
}
Tensor upstream_of(int rank) {
  return numbers({2, 3, kHidden}, static_cast<uint64_t>(70 + rank));
}

/// The same on plain whole tensors: gradients averaged over `dp` batches, clipped, one step.
struct Whole {
  test::Weights weights, leaves;
  double norm = 0;

  explicit Whole(int dp) {
    uint64_t seed = 20;
    for (const auto& [name, shape] : kShapes) {
      weights[name] = 0.5 * numbers(shape, ++seed);
      leaves[name] = leaf_of(weights[name]);
    }
    for (int rank = 0; rank < dp; ++rank) {
      Tensor x = at::embedding(leaves["embed.weight"], ids_of(rank));
      x = at::linear(x, leaves["up.weight"], leaves["up.bias"]).tanh();
      x = at::linear(x, leaves["down.weight"], leaves["down.bias"]);
      x = at::layer_norm(x, {kHidden}, leaves["norm.weight"], leaves["norm.bias"], 1e-5);
      ((x * upstream_of(rank)).sum() / dp).backward();
    }
    double squares = 0;
    for (const auto& [name, leaf] : leaves) squares += leaf.grad().square().sum().item<double>();
    norm = std::sqrt(squares);
  }
  [[nodiscard]] Tensor stepped(const std::string& name, double lr, double max_norm) const {
    const double factor = std::min(1.0, max_norm / (norm + 1e-6));
    return weights.at(name) - lr * factor * leaves.at(name).grad();
  }
};

void backward(Model& model) {
  const int rank = nxd::get_data_parallel_rank();
  (model(ids_of(rank)) * upstream_of(rank)).sum().backward();
}

struct Training {
  Model model;
  Parameters parameters;
  std::optional<Optimizer> optimizer;

  explicit Training(const Whole& whole) {
    nxd::move_model_to_device(model, at::kCPU);
    test::fill(model, whole.weights, at::kDouble);
    parameters = model.parameters();
    optimizer.emplace(parameters, OptimizerOptions{.kind = OptimizerOptions::Kind::kSgd});
  }
};

void expect_stepped(const Training& run, const Whole& want, double lr, double max_norm,
                    const std::string& where) {
  for (const auto& p : run.parameters) {
    const Tensor whole = want.stepped(p->name(), lr, max_norm);
    EXPECT_LE(largest_difference(p->leaf(), test::slice_of(*p, whole)), 1e-13)
        << p->name() << where;
  }
}

// Oracle: the same on whole tensors, averaged before the norm. The data-parallel ranks' own norms
// differ, so clipping before the reduction would give other weights.
TEST(ClipGradNorm, BeforeOptimizerStep_ReducesThenClipsOnce) {
  for (const auto& [tp, dp] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}, {1, 3}}) {
    const Whole want(dp);
    ASSERT_GT(want.norm, 1);
    on_model_parallel(tp, dp, [&] {
      const auto where = str(" tp=", tp, " dp=", dp);
      Training run(want);
      for (int again = 0; again < 2;
           ++again) {  // the second step must not see the first one's gradients
        test::fill(run.model, want.weights, at::kDouble);
        run.parameters = run.model.parameters();
        run.optimizer.emplace(run.parameters,
                              OptimizerOptions{.kind = OptimizerOptions::Kind::kSgd});
        backward(run.model);
        EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, 0.5), want.norm, 1e-12) << where;
        nxd::optimizer_step(*run.optimizer, nxd::get_data_parallel_group(as_list), 0.1);
        expect_stepped(run, want, 0.1, 0.5, where);
        run.optimizer->zero_grad();
      }
    });
  }
}

// In fp32 the fused kernel computes the gradients of a norm's weight and bias. Below the limit
// nothing is scaled after the mean. Oracle: as above; the tolerance is 100 roundings of weights
// and steps of about 1.
TEST(ClipGradNorm, InFloatsBelowTheLimit_IsFollowedByTheStep) {
  const Whole want(2);
  constexpr double kLimit = 1e6;
  on_model_parallel(2, 2, [&] {
    Training run(want);
    test::fill(run.model, want.weights, at::kFloat);
    run.parameters = run.model.parameters();
    run.optimizer.emplace(run.parameters, OptimizerOptions{.kind = OptimizerOptions::Kind::kSgd});
    backward(run.model);
    EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, kLimit), want.norm, 1e-5 * want.norm);
    nxd::optimizer_step(*run.optimizer, nxd::get_data_parallel_group(as_list), 0.1);
    for (const auto& p : run.parameters) {
      const Tensor whole = want.stepped(p->name(), 0.1, kLimit);
      EXPECT_LE(largest_difference(p->leaf(), test::slice_of(*p, whole)), 100 * 0x1p-24)
          << p->name();
    }
  });
}

// Oracle: the largest gradient, and the p-norm, of the whole tensors.
TEST(ClipGradNorm, OfOtherPowers_IsThatOfTheWholeGradients) {
  const Whole want(2);
  double largest = 0, cubes = 0;
  for (const auto& [name, leaf] : want.leaves) {
    largest = std::max(largest, leaf.grad().abs().max().item<double>());
    cubes += leaf.grad().abs().pow(3).sum().item<double>();
  }
  on_model_parallel(2, 2, [&] {
    Training run(want);
    backward(run.model);
    EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, 1e9, std::numeric_limits<double>::infinity()),
                largest, 1e-12);
    EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, 1e9, 3), std::cbrt(cubes), 1e-12);
  });
}

TEST(OptimizerStep, WithoutClipping_TakesTheMeanItself) {
  const Whole want(2);
  on_model_parallel(2, 2, [&] {
    Training run(want);
    backward(run.model);
    nxd::optimizer_step(*run.optimizer, nxd::get_data_parallel_group(as_list), 0.1);
    expect_stepped(run, want, 0.1, 1e9, "");
  });
}

TEST(OptimizerStep, WithoutGroups_IsAnErrorThatNamesThemWhereRanksHoldParts) {
  const Whole want(2);
  on_model_parallel(2, 2, [&] {
    Training run(want);
    backward(run.model);
    for (const auto& action : std::vector<std::function<void()>>{
             [&] { nxd::optimizer_step(*run.optimizer, 0.1); },
             [&] {
               nxd::optimizer_step(*run.optimizer, {{0, 1, 2, 3}}, 0.1);
             },
             [&] {
               nxd::optimizer_step(*run.optimizer, nxd::get_tensor_model_parallel_group(as_list),
                                   0.1);
             }}) {
      const Error error = thrown_by(action);
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("get_data_parallel_group(as_list)"),
                std::string::npos)
          << error.what();
    }
    nxd::optimizer_step(*run.optimizer, nxd::get_data_parallel_group(as_list), 0.1);
    expect_stepped(run, want, 0.1, 1e9, "");  // the refused calls changed nothing
  });
  on_model_parallel(1, 2, [&] {  // all ranks are the data-parallel group
    Training run(want);
    backward(run.model);
    nxd::optimizer_step(*run.optimizer, 0.1);
    expect_stepped(run, want, 0.1, 1e9, "");
  });
}

TEST(ClipGradNorm, BackwardAfterIt_IsAnError) {
  const Whole want(2);
  on_model_parallel(2, 2, [&] {
    Training run(want);
    backward(run.model);
    nxd::clip_grad_norm(run.parameters, 1);
    backward(run.model);
    const Error error = thrown_by(
        [&] { nxd::optimizer_step(*run.optimizer, nxd::get_data_parallel_group(as_list), 0.1); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("after the last backward"), std::string::npos)
        << error.what();
    // After zero_grad the step can be repeated.
    run.optimizer->zero_grad();
    backward(run.model);
    EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, 1), want.norm, 1e-12);
    EXPECT_NEAR(nxd::clip_grad_norm(run.parameters, 1), 1, 1e-5);  // already clipped
  });
}

TEST(ClipGradNorm, WrongCalls_SayTheRemedy) {
  const Whole want(1);
  on_model_parallel(2, 1, [&] {
    Training run(want);
    EXPECT_EQ(thrown_by([&] { nxd::clip_grad_norm(run.parameters, -1); }).code(), Code::kUsage);
    run.model.up.weight()->leaf().mutable_grad() =
        at::full_like(run.model.up.weight()->leaf().detach(), std::nan(""));
    const Error error = thrown_by([&] { nxd::clip_grad_norm(run.parameters, 1); });
    EXPECT_EQ(error.code(), Code::kNumerics);
    EXPECT_NE(std::string(error.what()).find("up.weight"), std::string::npos) << error.what();

    Model unmoved;
    materialize(unmoved);
    const Error group = thrown_by([&] { nxd::clip_grad_norm(unmoved.parameters(), 1); });
    EXPECT_NE(std::string(group.what()).find("move_model_to_device"), std::string::npos)
        << group.what();
  });
  on_model_parallel(2, 2, [&] {  // another group with the same number of ranks
    nxd::ColumnParallelLinear other(
        4, 6, {.tensor_model_parallel_group = nxd::get_data_parallel_group()});
    nxd::move_model_to_device(other, at::kCPU);
    EXPECT_EQ(thrown_by([&] { nxd::clip_grad_norm(other.parameters(), 1); }).code(), Code::kUsage);
  });
}

// Oracle: the parameters before the move.
TEST(MoveModelToDevice, KeepsShardingAndTies) {
  on_model_parallel(3, 1, [] {
    struct Tied : Model {
      Tied() : head({.in_features = kHidden, .out_features = kIds, .bias = false}) {
        head.tie_weight(embed.weight());
        add("head", head);
      }
      Linear head;
    } model;
    nxd::move_model_to_device(model, at::kCPU);
    const auto& weight = model.up.weight();
    EXPECT_TRUE(weight->placement().is_shard(0));
    EXPECT_TRUE(weight->axis() == nxd::get_tensor_model_parallel_group());
    EXPECT_EQ(model.head.weight(), model.embed.weight());
    EXPECT_EQ(model.parameters().size(), kShapes.size());
    const Tensor before = weight->leaf();
    nxd::move_model_to_device(model, at::kCPU);
    EXPECT_TRUE(weight->leaf().is_same(before)) << "an optimizer would lose it";

    nxd::ColumnParallelLinear elsewhere(4, 4, {.device = at::Device(at::kCUDA, 1)});
    const Error error = thrown_by([&] { nxd::move_model_to_device(elsewhere, at::kCPU); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("cuda:1"), std::string::npos) << error.what();
  });
}

// Oracle: the guide's names and the API's names return the same.
TEST(Getters, OfBothGuides_AreOneState) {
  on_model_parallel(2, 2, [] {
    EXPECT_EQ(nxd::get_tensor_parallel_size(), nxd::get_tensor_model_parallel_size());
    EXPECT_EQ(nxd::get_data_parallel_world_size(), nxd::get_data_parallel_size());
    EXPECT_EQ(nxd::get_data_parallel_group(as_list),
              (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
    EXPECT_TRUE(nxd::model_parallel_is_initialized());
  });
}

}  // namespace
}  // namespace cleave::nxd_train_test
