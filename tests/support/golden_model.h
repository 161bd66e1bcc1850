#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/golden.h"

namespace cleave::test {

/// A golden model and its layout.
struct GoldenLayout {
  std::string golden;
  int tp = 1, dp = 1;
  bool sequence_parallel = false;
};

inline std::string layout_name(const ::testing::TestParamInfo<GoldenLayout>& info) {
  const GoldenLayout& l = info.param;
  std::string name = str(l.golden, "_tp", l.tp, "_dp", l.dp, l.sequence_parallel ? "_sp" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline const OptimizerOptions kGoldenAdamW{
    .eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll};

/// A batch for the model and its loss; mask and types if the family has them.
struct GoldenRows {
  Tensor ids, targets, mask, types;

  [[nodiscard]] GoldenRows at_step(int64_t step) const {
    const auto of = [&](const Tensor& t) { return t.defined() ? t[step] : t; };
    return {.ids = of(ids), .targets = of(targets), .mask = of(mask), .types = of(types)};
  }
};

/// A golden model on one layout.
///
/// Oracle: transformers' models in fp32 (tests/golden/README.md). Its bounds: logits 5e-5, loss and
/// gradients 1e-5, stepped weights 1e-4.
class GoldenModel : public ::testing::TestWithParam<GoldenLayout> {
 protected:
  void SetUp() override {
    layout_ = GetParam();
    folder_ = golden_folder(GetParam().golden);
    golden_ = golden_answers(GetParam().golden);
    weights_ = read_tensors(folder_);
  }

  /// The batch whose tensors have this prefix, with or without a leading dim of steps.
  [[nodiscard]] virtual GoldenRows rows_of(const std::string& prefix) const = 0;

  std::unique_ptr<Model> model_on(const Axis& tp, at::ScalarType type = at::kFloat) {
    auto model = make_model(Json::parse_file(folder_ + "/config.json"));
    parallelize_module(*model, tp, model->plan(layout_.sequence_parallel));
    fill(*model, weights_, type);
    return model;
  }

  /// Runs `body` on every rank of the layout's mesh.
  void on_ranks(const std::function<void(const Mesh&)>& body) {
    run_ranks(layout_.tp * layout_.dp, [&](World& world) {
      body(Mesh::build(world, {{"dp", layout_.dp}, {"tp", layout_.tp}}));
    });
  }

  /// This data-parallel rank's sequences; an undefined tensor stays undefined.
  static Tensor own(const Tensor& t, const Axis& dp) {
    if (!t.defined()) return t;
    const int64_t n = t.size(0) / dp.size();
    return t.narrow(0, n * dp.rank(), n);
  }

  /// Forward and backward of one batch, with gradients reduced over both axes. Returns logits and
  /// loss.
  static std::pair<Tensor, double> pass(Model& model, const Mesh& mesh, const GoldenRows& rows) {
    const Axis& dp = mesh["dp"];
    Context context;
    context.key_mask = own(rows.mask, dp);
    context.token_types = own(rows.types, dp);
    const auto count = rows.targets.ne(-100).sum().item<int64_t>();
    const DTensor logits = model(DTensor(own(rows.ids, dp), mesh["tp"], Replicate{}), context);
    const DTensor loss = cross_entropy(logits, own(rows.targets, dp), {.valid_tokens = count});
    loss.local().backward();
    const Parameters parameters = model.parameters();
    finish_gradients(parameters, mesh["tp"]);
    sum_gradients(parameters, dp);
    const Tensor sum = dp.all_reduce(loss.local().detach().to(at::kDouble), "test loss");
    return {logits.full_tensor().detach(), sum.item<double>()};
  }

  void expect_gradients(Model& model, const std::string& prefix) {
    for (const auto& p : model.parameters()) {
      EXPECT_LE(golden_difference(golden_, prefix, *p, p->leaf().grad()), 1e-5) << p->name();
    }
  }

  /// Compares logits with the answers "pad.logits" of this rank's sequences where `real` is not 0.
  /// Logits per token are recorded as their projection on golden_directions.
  void expect_padded_logits(const Tensor& logits, const Tensor& real, const Axis& dp) {
    const Tensor want = own(golden_.at("pad.logits"), dp);
    const Tensor got = logits.dim() == 3
                           ? logits.to(at::kDouble).matmul(golden_directions(logits.size(-1)))
                           : logits;
    EXPECT_LE(largest_difference(got * real, want * real), 5e-5);
  }

  /// Runs three steps of one optimizer and compares them with the losses, norms and weights
  /// recorded under `run`. clip 0: no clipping.
  void expect_three_steps(const std::string& run, const OptimizerOptions& options, double lr,
                          double clip) {
    on_ranks([&](const Mesh& mesh) {
      auto model = model_on(mesh["tp"]);
      const Parameters parameters = model->parameters();
      Optimizer optimizer(parameters, options);
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const double loss = pass(*model, mesh, rows_of("train.").at_step(step)).second;
        const double norm = gradient_norm(parameters, mesh["tp"]).value;
        EXPECT_NEAR(loss, golden_.at(run + ".loss")[step].item<float>(), 1e-5);
        EXPECT_NEAR(norm, golden_.at(run + ".grad_norm")[step].item<float>(),
                    1e-5 * std::max(1.0, norm));
        if (clip > 0) clip_gradients(parameters, norm, clip);
        optimizer.step(lr);
      }
      for (const auto& p : parameters) {
        EXPECT_LE(golden_difference(golden_, run + ".step3", *p, p->leaf()), 1e-4) << p->name();
      }
    });
  }

  GoldenLayout layout_;
  std::string folder_;
  Tensors golden_, weights_;
};

}  // namespace cleave::test
