#include "cleave/nn/call_record.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/mlp.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: the same computation as plain tensor functions on whole weights, in fp64
// (tests/support/unsplit.h).
namespace cleave::call_record_test {
namespace {

using test::LayerCase;
using test::Weights;

/// x * scale, as users write it, without used_in().
class Scale : public Layer {
 public:
  Scale() { add("scale", scale_); }

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return x.with(x.local() * scale_->use());
  }

 private:
  std::shared_ptr<Parameter> scale_ =
      std::make_shared<Parameter>(std::vector<int64_t>{6}, Init::constant(1));
};

LayerCase scale_case(const Placement& input) {
  return {.make = [] { return std::make_unique<Scale>(); },
          .plan = {},
          .reference = [](const Weights& w, const Tensor& x) { return x * w.at("scale"); },
          .x = test::numbers({2, 5, 6}, 1),
          .input = input};
}

TEST(CallRecord, ParameterOnWholeOrShardedActivation_HasTheGradientOfTheUnsplitLayer) {
  for (const Placement& input :
       {Placement(Replicate{}), Placement(Shard{1}), Placement(Shard{0})}) {
    test::expect_equals_unsplit(scale_case(input));
  }
}

/// x + mlp(x) * scale. Layouts inside the mlp belong to other calls.
class ScaledMlp : public Layer {
 public:
  ScaledMlp() {
    add("mlp", mlp_);
    add("scale", scale_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor y = mlp_(x, context);
    return x + y.with(y.local() * scale_->use());
  }

 private:
  Mlp mlp_{{.hidden = 6, .intermediate = 7}};
  std::shared_ptr<Parameter> scale_ =
      std::make_shared<Parameter>(std::vector<int64_t>{6}, Init::constant(1));
};

Plan mlp_plan(const Placement& between) {
  return {{"mlp", PrepareModuleInput{.input = between, .desired = Replicate{}}},
          {"mlp.{gate,up}_proj", Colwise{}},
          {"mlp.down_proj", Rowwise{.output = between}}};
}

TEST(CallRecord, ParameterBetweenSplitChildren_HasTheGradientOfTheUnsplitLayer) {
  for (const Placement& between : {Placement(Replicate{}), Placement(Shard{1})}) {
    test::expect_equals_unsplit(
        {.make = [] { return std::make_unique<ScaledMlp>(); },
         .plan = mlp_plan(between),
         .reference =
             [](const Weights& w, const Tensor& x) {
               const Tensor wide = at::silu(at::linear(x, w.at("mlp.gate_proj.weight"))) *
                                   at::linear(x, w.at("mlp.up_proj.weight"));
               return x + at::linear(wide, w.at("mlp.down_proj.weight")) * w.at("scale");
             },
         .x = test::numbers({2, 5, 6}, 1),
         .input = between});
  }
}

/// down(up(x) * scale): x is whole and up(x) is sharded, so the layouts of the call do not agree.
class ScaledInside : public Layer {
 public:
  explicit ScaledInside(bool reports) : reports_(reports) {
    add("up", up_);
    add("down", down_);
    add("scale", scale_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor wide = up_(x, context);
    if (reports_) scale_->used_in(wide);
    return down_(wide.with(wide.local() * scale_->use()), context);
  }

 private:
  bool reports_;
  Linear up_{{.in_features = 6, .out_features = 8, .bias = false}};
  Linear down_{{.in_features = 8, .out_features = 6, .bias = false}};
  std::shared_ptr<Parameter> scale_ =
      std::make_shared<Parameter>(std::vector<int64_t>{1}, Init::constant(1));
};

const Plan kInsidePlan = {{"up", Colwise{}}, {"down", Rowwise{}}};

TEST(CallRecord, ReportedUse_OverridesTheLayoutsOfTheCall) {
  test::expect_equals_unsplit({.make = [] { return std::make_unique<ScaledInside>(true); },
                               .plan = kInsidePlan,
                               .reference =
                                   [](const Weights& w, const Tensor& x) {
                                     return at::linear(
                                         at::linear(x, w.at("up.weight")) * w.at("scale"),
                                         w.at("down.weight"));
                                   },
                               .x = test::numbers({2, 5, 6}, 1)});
}

TEST(CallRecord, UnreportedUseWhereLayoutsDoNotAgree_IsRefusedInTheFirstForward) {
  test::on_ranks(2, [](const Axis& axis) {
    ScaledInside layer(false);
    parallelize_module(layer, axis, kInsidePlan);
    materialize(layer, {.dtype = at::kDouble});
    const DTensor x(test::numbers({2, 5, 6}, 1), axis, Replicate{});
    const Error error = test::thrown_by([&] { (void)layer(x, Context()); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_STREQ(
        error.what(),
        "the model uses its parameter scale where it has a Shard(2) made by up and a "
        "Replicate made by the caller, so it is not known whether its gradient is whole or "
        "a partial sum; in addition to use(), call used_in(activation) with the "
        "activation that you apply it to");
    // Without grad mode there is no gradient, so no error.
    const at::NoGradGuard no_grad;
    EXPECT_EQ(layer(x, Context()).local().dim(), 3);
  });
}

}  // namespace
}  // namespace cleave::call_record_test
