#include "tests/support/golden.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/comm/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"

// Oracle: transformers' models in fp32, recorded with their distance from fp64. Bounds are those of
// the goldens' own notes: logits 5e-5, loss and gradients 1e-5, stepped weights 1e-4.
namespace cleave {
namespace {

using test::largest_difference;

struct Layout {
  std::string golden;
  int tp = 1, dp = 1;
  bool sequence_parallel = false;
};

/// A causal model of the goldens on one layout.
class CausalGolden : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    CLEAVE_NEEDS_DATA();
    folder_ = test::data_folder() + "/goldens/" + GetParam().golden;
    golden_ = test::read_tensors(folder_ + "/goldens.safetensors");
    weights_ = test::read_tensors(folder_);
  }

  std::unique_ptr<Model> model_on(const Axis& tp) {
    auto model = make_model(Json::parse_file(folder_ + "/config.json"));
    parallelize_module(*model, tp, model->plan(GetParam().sequence_parallel));
    test::fill(*model, weights_, at::kFloat);
    return model;
  }

  /// Runs `body` on every rank of the layout's mesh.
  void on_ranks(const std::function<void(const Mesh&)>& body) {
    const Layout& l = GetParam();
    run_ranks(l.tp * l.dp, [&](World& world) {
      body(Mesh::build(world, {{"dp", l.dp}, {"tp", l.tp}}));
    });
  }

  /// This data-parallel rank's rows.
  static Tensor rows(const Tensor& t, const Axis& dp) {
    const int64_t n = t.size(0) / dp.size();
    return t.narrow(0, n * dp.rank(), n);
  }

  /// Forward and backward of one batch; gradients complete on both axes. Returns logits and loss.
  static std::pair<Tensor, double> pass(Model& model, const Mesh& mesh, const Tensor& ids,
                                        const Tensor& labels) {
    const Axis& dp = mesh["dp"];
    const Tensor targets = next_token_labels(labels);
    const auto count = targets.ne(-100).sum().item<int64_t>();
    const Context context;
    const DTensor logits = model(DTensor(rows(ids, dp), mesh["tp"], Replicate{}), context);
    const DTensor loss = cross_entropy(logits, rows(targets, dp), {.valid_tokens = count});
    loss.local().backward();
    const Parameters parameters = model.parameters();
    finish_gradients(parameters, mesh["tp"]);
    sum_gradients(parameters, dp);
    const Tensor sum = dp.all_reduce(loss.local().detach().to(at::kDouble), "test loss");
    return {logits.full_tensor().detach(), sum.item<double>()};
  }

  /// Three steps, against the losses, norms and weights recorded under `run`. clip 0: none.
  void expect_three_steps(const std::string& run, const OptimizerOptions& options, double clip) {
    on_ranks([&](const Mesh& mesh) {
      auto model = model_on(mesh["tp"]);
      const Parameters parameters = model->parameters();
      Optimizer optimizer(parameters, options);
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const double loss = pass(*model, mesh, golden_.at("train.input_ids")[step],
                                 golden_.at("train.labels")[step])
                                .second;
        const double norm = gradient_norm(parameters, mesh["tp"]).value;
        EXPECT_NEAR(loss, golden_.at(run + ".loss")[step].item<float>(), 1e-5);
        EXPECT_NEAR(norm, golden_.at(run + ".grad_norm")[step].item<float>(),
                    1e-5 * std::max(1.0, norm));
        if (clip > 0) clip_gradients(parameters, norm, clip);
        optimizer.step(1e-3);
      }
      for (const auto& p : parameters) {
        const Tensor want = test::slice_of(*p, golden_.at(run + ".step3." + p->name()));
        EXPECT_LE(largest_difference(p->leaf(), want), 1e-4) << p->name();
      }
    });
  }

  std::string folder_;
  std::map<std::string, Tensor> golden_, weights_;
};

const OptimizerOptions kAdamW = {
    .eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll};

TEST_P(CausalGolden, ForwardAndBackward_GiveLogitsLossAndEveryGradient) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const auto [logits, loss] =
        pass(*model, mesh, golden_.at("input.input_ids"), golden_.at("input.labels"));
    EXPECT_LE(largest_difference(logits, rows(golden_.at("logits"), mesh["dp"])), 5e-5);
    EXPECT_NEAR(loss, golden_.at("loss").item<float>(), 1e-5);
    for (const auto& p : model->parameters()) {
      const Tensor want = test::slice_of(*p, golden_.at("grad." + p->name()));
      EXPECT_LE(largest_difference(p->leaf().grad(), want), 1e-5) << p->name();
    }
  });
}

TEST_P(CausalGolden, RowsOfUnequalLength_GiveTheirLogitsLossAndGradients) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const Tensor labels = golden_.at("pad.input.labels");
    const auto [logits, loss] = pass(*model, mesh, golden_.at("pad.input.input_ids"), labels);
    const Tensor real = rows(labels, mesh["dp"]).ne(-100).unsqueeze(-1);
    EXPECT_LE(largest_difference(logits * real, rows(golden_.at("pad.logits"), mesh["dp"]) * real),
              5e-5);
    EXPECT_NEAR(loss, golden_.at("pad.loss").item<float>(), 1e-5);
    for (const auto& p : model->parameters()) {
      const Tensor want = test::slice_of(*p, golden_.at("pad.grad." + p->name()));
      EXPECT_LE(largest_difference(p->leaf().grad(), want), 1e-5) << p->name();
    }
  });
}

TEST_P(CausalGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adamw", kAdamW, 0);
}

/// The goldens that have a run with clipped gradients.
class ClippedGolden : public CausalGolden {};

TEST_P(ClippedGolden, ThreeClippedSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("clip", kAdamW, 0.1);
}

/// The golden that has a run with plain Adam.
class AdamGolden : public CausalGolden {};

TEST_P(AdamGolden, ThreeAdamSteps_GiveLossesNormsAndWeights) {
  expect_three_steps("adam", {.kind = OptimizerOptions::Kind::kAdam, .eps = 1e-6}, 0);
}

std::vector<Layout> layouts_of(const std::vector<std::string>& goldens) {
  std::vector<Layout> out;
  for (const std::string& golden : goldens) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({.golden = golden, .tp = tp});
    out.push_back({.golden = golden, .dp = 2});
    out.push_back({.golden = golden, .tp = 2, .dp = 2});
    for (const int tp : {2, 3, 4}) {
      out.push_back({.golden = golden, .tp = tp, .sequence_parallel = true});
    }
    out.push_back({.golden = golden, .tp = 2, .dp = 2, .sequence_parallel = true});
  }
  return out;
}

std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  const Layout& l = info.param;
  std::string name = str(l.golden, "_tp", l.tp, "_dp", l.dp, l.sequence_parallel ? "_sp" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Llama, CausalGolden,
                         ::testing::ValuesIn(layouts_of({"llama-mha", "llama-6heads",
                                                         "llama-gqa-tied",
                                                         "llama-gqa-llama3rope"})),
                         layout_name);
INSTANTIATE_TEST_SUITE_P(Gpt2, CausalGolden,
                         ::testing::ValuesIn(layouts_of({"gpt2", "gpt2-4layers", "gpt2-6heads"})),
                         layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, ClippedGolden,
                         ::testing::ValuesIn(layouts_of({"llama-mha", "gpt2"})), layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, AdamGolden, ::testing::ValuesIn(layouts_of({"gpt2"})),
                         layout_name);

}  // namespace
}  // namespace cleave
