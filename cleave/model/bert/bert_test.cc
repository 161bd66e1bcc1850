#include "cleave/model/bert/bert.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: transformers' BERT classes in fp32, recorded with their distance from fp64. Bounds are
// those of the goldens' own notes: logits 5e-5, loss and gradients 1e-5, stepped weights 1e-4.
namespace cleave {
namespace {

using test::largest_difference;
using Tensors = std::map<std::string, Tensor>;

struct Layout {
  const char* golden;
  int tp, dp;
  bool sequence_parallel;
};

/// Inputs and labels of one batch.
struct Rows {
  Tensor ids, labels, mask, types;

  static Rows of(const Tensors& golden, const std::string& prefix) {
    return {.ids = golden.at(prefix + "input_ids"),
            .labels = golden.at(prefix + "labels"),
            .mask = golden.at(prefix + "attention_mask").to(at::kBool),
            .types = golden.at(prefix + "token_type_ids")};
  }
  [[nodiscard]] Rows at_step(int64_t step) const {
    return {.ids = ids[step], .labels = labels[step], .mask = mask[step], .types = types[step]};
  }
};

class BertGolden : public ::testing::TestWithParam<Layout> {
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

  void on_ranks(const std::function<void(const Mesh&)>& body) {
    const Layout& l = GetParam();
    run_ranks(l.tp * l.dp, [&](World& world) {
      body(Mesh::build(world, {{"dp", l.dp}, {"tp", l.tp}}));
    });
  }

  /// This data-parallel rank's rows.
  static Tensor own(const Tensor& t, const Axis& dp) {
    const int64_t n = t.size(0) / dp.size();
    return t.narrow(0, n * dp.rank(), n);
  }

  /// Forward and backward of one batch; gradients complete on both axes. Returns logits and loss.
  static std::pair<Tensor, double> pass(Model& model, const Mesh& mesh, const Rows& rows) {
    const Axis& dp = mesh["dp"];
    Context context;
    context.key_mask = own(rows.mask, dp);
    context.token_types = own(rows.types, dp);
    const auto count = rows.labels.ne(-100).sum().item<int64_t>();
    const DTensor logits = model(DTensor(own(rows.ids, dp), mesh["tp"], Replicate{}), context);
    const DTensor loss = cross_entropy(logits, own(rows.labels, dp), {.valid_tokens = count});
    loss.local().backward();
    const Parameters parameters = model.parameters();
    finish_gradients(parameters, mesh["tp"]);
    sum_gradients(parameters, dp);
    const Tensor sum = dp.all_reduce(loss.local().detach().to(at::kDouble), "test loss");
    return {logits.full_tensor().detach(), sum.item<double>()};
  }

  void expect_gradients(Model& model, const std::string& prefix) {
    for (const auto& p : model.parameters()) {
      const Tensor want = test::slice_of(*p, golden_.at(prefix + p->name()));
      EXPECT_LE(largest_difference(p->leaf().grad(), want), 1e-5) << p->name();
    }
  }

  void expect_weights(Model& model, const std::string& prefix) {
    for (const auto& p : model.parameters()) {
      const Tensor want = test::slice_of(*p, golden_.at(prefix + p->name()));
      EXPECT_LE(largest_difference(p->leaf(), want), 1e-4) << p->name();
    }
  }

  /// Three steps of one optimizer; `run` is its name in the golden.
  void expect_steps(const std::string& run, const OptimizerOptions& options, double lr,
                    double clip) {
    on_ranks([&](const Mesh& mesh) {
      auto model = model_on(mesh["tp"]);
      const Parameters parameters = model->parameters();
      Optimizer optimizer(parameters, options);
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const double loss = pass(*model, mesh, Rows::of(golden_, "train.").at_step(step)).second;
        const double norm = gradient_norm(parameters, mesh["tp"]).value;
        EXPECT_NEAR(loss, golden_.at(run + ".loss")[step].item<float>(), 1e-5);
        EXPECT_NEAR(norm, golden_.at(run + ".grad_norm")[step].item<float>(),
                    1e-5 * std::max(1.0, norm));
        if (clip > 0) clip_gradients(parameters, norm, clip);
        optimizer.step(lr);
      }
      expect_weights(*model, run + ".step3.");
    });
  }

  std::string folder_;
  Tensors golden_, weights_;
};

constexpr OptimizerOptions kAdamW{
    .eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll};

TEST_P(BertGolden, ForwardAndBackward_GiveHiddenStatesLogitsLossAndEveryGradient) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const Rows rows = Rows::of(golden_, "input.");
    const auto [logits, loss] = pass(*model, mesh, rows);
    EXPECT_LE(largest_difference(logits, own(golden_.at("logits"), mesh["dp"])), 5e-5);
    EXPECT_NEAR(loss, golden_.at("loss").item<float>(), 1e-5);
    expect_gradients(*model, "grad.");

    const at::NoGradGuard no_grad;
    Context context;
    context.token_types = own(rows.types, mesh["dp"]);
    const DTensor ids(own(rows.ids, mesh["dp"]), mesh["tp"], Replicate{});
    const Tensor hidden = dynamic_cast<Bert&>(*model).hidden(ids, context).full_tensor();
    const Tensor last = golden_.at(str("hidden_states.", model->facts().num_layers));
    EXPECT_LE(largest_difference(hidden, own(last, mesh["dp"])), 5e-5);
  });
}

TEST_P(BertGolden, RowsOfUnequalLength_GiveTheirLogitsLossAndGradients) {
  on_ranks([&](const Mesh& mesh) {
    auto model = model_on(mesh["tp"]);
    const Rows rows = Rows::of(golden_, "pad.input.");
    const auto [logits, loss] = pass(*model, mesh, rows);
    const Tensor want = own(golden_.at("pad.logits"), mesh["dp"]);
    // Logits at padded places do not count; a classifier's are of whole rows.
    const bool by_place = want.dim() == 3;
    const Tensor real =
        by_place ? own(rows.mask, mesh["dp"]).unsqueeze(-1) : at::ones({1, 1}, at::kBool);
    EXPECT_LE(largest_difference(logits * real, want * real), 5e-5);
    EXPECT_NEAR(loss, golden_.at("pad.loss").item<float>(), 1e-5);
    expect_gradients(*model, "pad.grad.");
  });
}

TEST_P(BertGolden, ThreeAdamWSteps_GiveLossesNormsAndWeights) {
  expect_steps("adamw", kAdamW, 1e-3, 0);
}

/// Goldens that have a run of another kind.
class ClippedBertGolden : public BertGolden {};
TEST_P(ClippedBertGolden, ThreeClippedSteps_GiveTheirWeights) {
  expect_steps("clip", kAdamW, 1e-3, 0.1);
}

class DescendingBertGolden : public BertGolden {};
TEST_P(DescendingBertGolden, ThreeStepsOfGradientDescent_GiveTheirWeights) {
  expect_steps("sgd", {.kind = OptimizerOptions::Kind::kSgd}, 0.1, 0);
}

std::vector<Layout> layouts_of(const std::vector<const char*>& goldens) {
  std::vector<Layout> out;
  for (const char* golden : goldens) {
    for (const int tp : {1, 2, 3, 4}) out.push_back({golden, tp, 1, false});
    for (const int tp : {2, 3}) out.push_back({golden, tp, 1, true});
    out.push_back({golden, 1, 2, false});
    out.push_back({golden, 2, 2, false});
  }
  return out;
}

std::string layout_name(const ::testing::TestParamInfo<Layout>& layout) {
  const Layout& l = layout.param;
  std::string name =
      str(l.golden, "_tp", l.tp, "_dp", l.dp, l.sequence_parallel ? "_sequence" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, BertGolden,
    ::testing::ValuesIn(layouts_of({"bert-mlm", "bert-mlm-6heads", "bert-cls"})), layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, ClippedBertGolden, ::testing::ValuesIn(layouts_of({"bert-mlm"})),
                         layout_name);
INSTANTIATE_TEST_SUITE_P(Layouts, DescendingBertGolden,
                         ::testing::ValuesIn(layouts_of({"bert-cls"})), layout_name);

TEST(RealMiniLm, HiddenStatesAndPooledToken_AreThoseOfTransformers) {
  CLEAVE_NEEDS_DATA();
  const char* folder = std::getenv("CLEAVE_MINILM");
  if (folder == nullptr) GTEST_SKIP() << "CLEAVE_MINILM is not set: it names the model's folder";
  const Tensors golden =
      test::read_tensors(test::data_folder() + "/goldens/real-minilm/goldens.safetensors");
  for (const int tp : {1, 2}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const at::NoGradGuard no_grad;
      const ModelFolder from = ModelFolder::open(folder);
      auto model = make_model(from.config);
      parallelize_module(*model, axis, model->plan());
      load_model(*model, from, at::kFloat);
      Context context;
      context.key_mask = golden.at("attention_mask").to(at::kBool);
      const DTensor ids(golden.at("input_ids"), axis, Replicate{});
      const DTensor hidden = (*model)(ids, context);
      const Tensor real = golden.at("attention_mask").unsqueeze(-1);
      EXPECT_LE(
          largest_difference(hidden.full_tensor() * real, golden.at("last_hidden_state") * real),
          5e-5);
      // What the package's users read: the mean over real tokens, of length 1.
      const Tensor mean = (hidden.full_tensor() * real).sum(1) / real.sum(1);
      const Tensor sentence = mean / mean.norm(2, {1}, true);
      EXPECT_LE(largest_difference(sentence, golden.at("sentence_embedding")), 1e-5);
      const Tensor pooled = (*dynamic_cast<Bert&>(*model).pooler())(hidden, context).full_tensor();
      EXPECT_LE(largest_difference(pooled, golden.at("pooler_output")), 5e-5);
    });
  }
}

}  // namespace
}  // namespace cleave
