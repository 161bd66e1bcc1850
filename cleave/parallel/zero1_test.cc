#include "cleave/parallel/zero1.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/save.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// Oracle: the plain optimizer on one rank with all sequences, in fp64.
namespace cleave::zero1_test {
namespace {

const char* const kConfig = R"json({"model_type": "llama", "vocab_size": 23, "hidden_size": 12,
  "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3,
  "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32})json";
const OptimizerOptions kOptions{.eps = 1e-6, .weight_decay = 0.1};
constexpr ShardPrecision kDouble{.param = at::kDouble, .reduce = at::kDouble};

std::unique_ptr<Model> make() {
  return make_model(Json::parse(kConfig, "config.json"));
}

void backward(Model& model, const Axis& dp, int64_t step) {
  const Tensor all = test::ids({4, 5}, 23, static_cast<uint64_t>(step));
  const int64_t count = 4 / dp.size();
  const Tensor ids = all.narrow(0, count * dp.rank(), count);
  const DTensor logits = model(DTensor(ids, Axis(), Replicate{}), Context());
  cross_entropy(logits, next_token_labels(ids), {.valid_tokens = 16}).local().backward();
}

void step_of(Model& model, Zero1Optimizer& optimizer, const Axis& dp, int64_t step) {
  optimizer.zero_grad();
  backward(model, dp, step);
  optimizer.reduce_gradients();
  clip_grad_norm(model.parameters(), 0.05);
  optimizer.step(0.01);
}

/// Whole weights after `last` clipped steps on one rank.
std::map<std::string, Tensor> wanted(int64_t last) {
  const auto model = make();
  materialize(*model, {.seed = 5, .dtype = at::kDouble});
  Optimizer optimizer(model->parameters(), kOptions);
  for (int64_t step = 0; step < last; ++step) {
    optimizer.zero_grad();
    backward(*model, {}, step);
    EXPECT_GT(clip_grad_norm(model->parameters(), 0.05).value, 0.05);  // it clips
    optimizer.step(0.01);
  }
  std::map<std::string, Tensor> out;
  for (const auto& p : model->parameters()) out[p->name()] = p->leaf().detach();
  return out;
}

void expect_weights(Model& model, const std::map<std::string, Tensor>& want) {
  for (const auto& p : model.parameters()) {
    EXPECT_LE(test::largest_difference(p->use().detach(), want.at(p->name())), 1e-10) << p->name();
  }
}

TEST(Zero1Optimizer, ThreeClippedStepsOverAnyRanks_EqualOneRank) {
  const auto want = wanted(3);
  for (const int dp : {1, 2, 4}) {
    for (const bool before_memory : {true, false}) {
      test::on_ranks(dp, [&](const Axis& axis) {
        const auto model = make();
        if (!before_memory) materialize(*model, {.seed = 5, .dtype = at::kDouble});
        Zero1Optimizer optimizer(model->parameters(), axis, kOptions, {.precision = kDouble});
        materialize(*model, {.seed = 5, .dtype = at::kDouble});
        optimizer.gather_weights();
        for (int64_t step = 0; step < 3; ++step) step_of(*model, optimizer, axis, step);
        expect_weights(*model, want);
        int64_t held = 0;
        int64_t whole = 0;
        for (const Optimizer::State& s : optimizer.states()) {
          EXPECT_EQ(s.exp_avg.sizes(), s.parameter->leaf().sizes());
          held += s.exp_avg.numel();
          whole += s.parameter->numel();
        }
        EXPECT_LE(held, whole / dp + 1);
      });
    }
  }
}

TEST(Zero1Optimizer, StatesSavedOnThreeRanks_ContinueOnTwoAndOnOne) {
  const auto want = wanted(3);
  const test::TempFolder folder;
  const std::string path = folder / "saved";
  test::on_ranks(3, [&](const Axis& axis) {
    const auto model = make();
    Zero1Optimizer optimizer(model->parameters(), axis, kOptions, {.precision = kDouble});
    materialize(*model, {.seed = 5, .dtype = at::kDouble});
    optimizer.gather_weights();
    // Each rank has all sequences and a third of their gradients.
    for (int64_t step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      backward(*model, {}, step);
      optimizer.reduce_gradients();
      const at::NoGradGuard no_grad;
      for (const auto& p : model->parameters()) p->leaf().mutable_grad().div_(3);
      clip_grad_norm(model->parameters(), 0.05);
      optimizer.step(0.01);
    }
    save_checkpoint(path,
                    {.step = 2,
                     .model = model.get(),
                     .optimizer = &optimizer,
                     .dtype = at::kDouble,
                     .carried = {},
                     .state_json = "{}",
                     .files = {}},
                    {.world = axis, .tp = Axis(), .dp = axis});
  });
  for (const int dp : {1, 2}) {
    test::on_ranks(dp, [&](const Axis& axis) {
      const auto model = make();
      Zero1Optimizer optimizer(model->parameters(), axis, kOptions, {.precision = kDouble});
      load_model(*model, ModelFolder::open(path), at::kDouble);
      load_optimizer(optimizer, *model, path);
      optimizer.gather_weights();
      step_of(*model, optimizer, axis, 2);
      expect_weights(*model, want);
    });
  }
}

TEST(Zero1Optimizer, StepBeforeTheSums_IsRefusedAndZeroGradDiscardsThem) {
  test::on_ranks(2, [](const Axis& axis) {
    const auto model = make();
    Zero1Optimizer optimizer(model->parameters(), axis, kOptions);
    materialize(*model);
    optimizer.gather_weights();
    backward(*model, axis, 0);
    const Error error = test::thrown_by([&] { optimizer.step(0.01); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("call reduce_gradients()"), std::string::npos);
    optimizer.zero_grad();
    EXPECT_FALSE(optimizer.gradients()->has_incomplete_gradients());
    EXPECT_FALSE(model->parameters()[0]->use().grad().defined());
  });
}

}  // namespace
}  // namespace cleave::zero1_test
