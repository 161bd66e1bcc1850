#include "cleave/nn/experts.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/parallel/recompute.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: closed forms, and every expert on every token as plain tensor functions on whole weights
// in fp64, with weights of zero for the experts that a token does not have.
namespace cleave::experts_test {
namespace {

using test::LayerCase;
using test::numbers;
using test::Weights;
using testing::HasSubstr;

const ExpertsOptions kOptions{
    .hidden = 7, .intermediate = 5, .num_experts = 4, .top_k = 2, .names = {}};

/// The probabilities 1/8, 2/8 and 5/8.
Tensor logits_of_eighths() {
  return at::tensor({0.0, std::log(2.0), std::log(5.0)}, at::kDouble).unsqueeze(0);
}

Tensor numbers_of(double first, double second) {
  return at::tensor({first, second}, at::kDouble).unsqueeze(0);
}

TEST(Route, TopK_AreTheMostProbableExperts) {
  const Routing r = route(router_probabilities(logits_of_eighths()), 2, false);
  EXPECT_TRUE(r.experts.equal(at::tensor({2, 1}, at::kLong).unsqueeze(0)));
  EXPECT_LE(test::largest_difference(r.weights, numbers_of(0.625, 0.25)), 1e-15);
}

TEST(Route, Normalized_WeightsSumToOne) {
  const Routing r = route(router_probabilities(logits_of_eighths()), 2, true);
  EXPECT_LE(test::largest_difference(r.weights, numbers_of(5 / 7.0, 2 / 7.0)), 1e-15);
}

TEST(Route, LogitsOf16Bits_HaveFp32Weights) {
  const Routing r = route(router_probabilities(at::arange(2, at::kBFloat16)), 1, false);
  EXPECT_EQ(r.weights.scalar_type(), at::kFloat);
  EXPECT_NEAR(r.weights.item<float>(), 1 / (1 + std::exp(-1.0)), 1e-7);  // bf16 has 0.730
}

Plan plan_of(const Placement& output) {
  return {{"", PrepareModuleOutput{.output = {}, .desired = output}},
          {"experts.*.{gate,up}_proj", Colwise{}},
          {"experts.*.down_proj", Rowwise{}}};
}

Tensor reference(const ExpertsOptions& o, const Weights& w, const Tensor& x) {
  const Tensor p = x.matmul(w.at("gate.weight").t()).softmax(-1);
  const Tensor last = std::get<0>(p.sort(-1, /*descending=*/true)).select(-1, o.top_k - 1);
  Tensor weights = p * p.ge(last.unsqueeze(-1));
  if (o.normalizes) weights = weights / weights.sum(-1, true);
  Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < o.num_experts; ++e) {
    const auto of = [&](const char* name) { return w.at(str("experts.", e, ".", name)).t(); };
    const Tensor gate = at::silu(x.matmul(of("gate_proj.weight")));
    const Tensor own = (gate * x.matmul(of("up_proj.weight"))).matmul(of("down_proj.weight"));
    y = y + weights.select(-1, e).unsqueeze(-1) * own;
  }
  return y;
}

LayerCase experts_case(const ExpertsOptions& o, const Placement& between) {
  return {.make = [o] { return std::make_unique<Experts>(o); },
          .plan = plan_of(between),
          .reference = [o](const Weights& w, const Tensor& x) { return reference(o, w, x); },
          .x = numbers({2, 5, o.hidden}, 1),
          .input = between};
}

TEST(Experts, OnAnyNumberOfRanks_EqualTheUnsplitLayer) {
  for (const bool normalizes : {true, false}) {
    for (const int64_t top_k : {1, 2, 4}) {
      ExpertsOptions o = kOptions;
      o.normalizes = normalizes;
      o.top_k = top_k;
      test::expect_equals_unsplit(experts_case(o, Replicate{}));
    }
  }
}

TEST(Experts, OnShardsOfTheSequence_EqualTheUnsplitLayer) {
  test::expect_equals_unsplit(experts_case(kOptions, Shard{1}));
}

TEST(Experts, WithoutAnOutputLayoutInThePlan_GiveAReplicate) {
  LayerCase c = experts_case(kOptions, Replicate{});
  c.plan.erase(c.plan.begin());
  test::expect_equals_unsplit(c);
}

/// Weights with which no token has expert 1 or 3: positive inputs, and a router with negative rows.
Weights weights_without_two(Layer& layer) {
  Weights w = test::weights_for(layer);
  w.at("gate.weight").abs_();
  w.at("gate.weight")[1].sub_(10);
  w.at("gate.weight")[3].sub_(10);
  return w;
}

// The optimizer refuses a parameter without a gradient.
TEST(Experts, WithoutTokens_HaveGradientsOfZeros) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool recomputes : {false, true}) {
      Experts layer(kOptions);
      test::fill(layer, weights_without_two(layer), type);
      if (recomputes) recompute(layer);
      const Tensor x = numbers({2, 5, kOptions.hidden}, 1).abs().to(type);
      const Tensor y = layer(DTensor(test::leaf_of(x), Axis(), Replicate{}), {}).local();
      y.sum().backward();
      for (const auto& p : layer.parameters()) {
        const Tensor& gradient = p->leaf().grad();
        ASSERT_TRUE(gradient.defined()) << p->name();
        const bool is_idle =
            p->name().starts_with("experts.1.") || p->name().starts_with("experts.3.");
        EXPECT_EQ(gradient.ne(0).any().item<bool>(), !is_idle) << p->name();
      }
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(layer(DTensor(x, Axis(), Replicate{}), {}).local(), y, 1e-2, 1e-2));
    }
  }
}

class CountedCalls : public Wrap {
 public:
  explicit CountedCalls(int* count) : count_(count) {}
  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    ++*count_;
    return next(x, context);
  }

 private:
  int* count_;
};

// A wrap may make collectives, and other ranks have tokens for other experts.
TEST(Experts, WithoutTokens_AreCalledIfTheyHaveWraps) {
  Experts layer(kOptions);
  test::fill(layer, weights_without_two(layer), at::kDouble);
  int count = 0;
  for (Layer* expert : layer.children()) {
    // The first child is the router; wraps of an expert, or of one of its projections.
    if (expert->path() == "gate") continue;
    Layer& wrapped = expert->path() == "experts.1" ? *expert : *expert->children().front();
    wrapped.attach(std::make_unique<CountedCalls>(&count));
  }
  const DTensor x(numbers({2, 5, kOptions.hidden}, 1).abs(), Axis(), Replicate{});
  const at::NoGradGuard no_grad;
  (void)layer(x, {});
  EXPECT_EQ(count, kOptions.num_experts);
}

// Oracle: the gradient w0 w1 (c1 - c0) dy of two logits, where the experts' results are c0 = 1 and
// c1 = 1 + 2^-7. In bf16 the product c1 dy would be rounded by a third of the difference.
TEST(Experts, SimilarResultsIn16Bits_LeaveTheRouterItsGradient) {
  Experts layer({.hidden = 1,
                 .intermediate = 1,
                 .num_experts = 2,
                 .top_k = 2,
                 .activation = Activation::kRelu,
                 .names = {}});
  Weights weights = test::weights_for(layer);
  for (auto& [name, value] : weights) value.fill_(name == "gate.weight" ? 0 : 1);
  weights.at("experts.1.down_proj.weight").fill_(1 + 0x1p-7);
  test::fill(layer, weights, at::kBFloat16);
  const Tensor x = at::ones({1, 1, 1}, at::kBFloat16);
  layer(DTensor(x, Axis(), Replicate{}), {}).local().backward(at::full_like(x, 1.5));
  const double want = 0.25 * 0x1p-7 * 1.5;
  const Tensor gradient = layer.parameters()[0]->leaf().grad();
  EXPECT_NEAR(gradient[0].item<double>(), -want, 0.01 * want);
  EXPECT_NEAR(gradient[1].item<double>(), want, 0.01 * want);
}

// One token per rank and call: the experts of one data-parallel rank are idle on the other.
TEST(Experts, OneToken_EqualsTheReference) {
  Experts layer(kOptions);
  const Weights weights = test::weights_for(layer);
  test::fill(layer, weights, at::kDouble);
  for (uint64_t seed = 1; seed < 9; ++seed) {
    const Tensor x = numbers({1, 1, kOptions.hidden}, seed);
    const Tensor y = layer(DTensor(x, Axis(), Replicate{}), {}).local();
    EXPECT_LE(test::largest_difference(y, reference(kOptions, weights, x)), 1e-12);
  }
}

// In fp32 the rows of an expert are padded to one of few numbers, if there are many. 100 tokens on
// average for each expert: sums of up to 200 rounded terms.
TEST(Experts, ManyTokensInFp32_EqualTheReference) {
  constexpr double kTolerance = 200 * 0x1p-24;
  const auto rounded = [](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  Experts layer(kOptions);
  Weights leaves;
  for (const auto& [name, w] : test::weights_for(layer)) {
    leaves.emplace(name, test::leaf_of(rounded(w)));
  }
  test::fill(layer, leaves, at::kFloat);
  const Tensor wanted_x = test::leaf_of(rounded(numbers({2, 100, kOptions.hidden}, 1)));
  const Tensor wanted = reference(kOptions, leaves, wanted_x);
  const Tensor upstream = rounded(numbers(wanted.sizes(), 99));
  wanted.backward(upstream);

  const Tensor x = test::leaf_of(wanted_x.detach().to(at::kFloat));
  const Tensor y = layer(DTensor(x, Axis(), Replicate{}), {}).local();
  y.backward(upstream.to(at::kFloat));
  const auto expect_close = [](const Tensor& got, const Tensor& want, const std::string& what) {
    EXPECT_LE(test::largest_difference(got.detach().to(at::kDouble), want.detach()),
              kTolerance * want.abs().max().item<double>())
        << what;
  };
  expect_close(y, wanted, "output");
  expect_close(x.grad(), wanted_x.grad(), "input");
  for (const auto& p : layer.parameters()) {
    expect_close(p->leaf().grad(), leaves.at(p->name()).grad(), p->name());
  }
}

// Two of four experts: gate 7 x 4, and half of four times 3 x 7 x 5, two operations each.
TEST(Experts, OperationsPerToken_AreThoseOfTheTokensExperts) {
  Experts layer(kOptions);
  double sum = 0;
  layer.walk([&](const Layer& l) { sum += l.forward_flops_per_token(16); });
  EXPECT_DOUBLE_EQ(sum, 2.0 * (7 * 4 + 2 * 3 * 7 * 5));
}

TEST(Experts, StylesThatDoNotBelongTogether_AreRefused) {
  test::on_ranks(2, [](const Axis& axis) {
    const auto refusal = [&](const Plan& plan) {
      Experts layer(kOptions);
      const Error error = test::thrown_by([&] { parallelize_module(layer, axis, plan); });
      EXPECT_EQ(error.code(), Code::kShape);
      return std::string(error.what());
    };
    EXPECT_THAT(refusal({{"experts.*.gate_proj", Colwise{}}}), HasSubstr("belong together"));
    EXPECT_THAT(
        refusal({{"experts.0.{gate,up}_proj", Colwise{}}, {"experts.0.down_proj", Rowwise{}}}),
        HasSubstr("give all experts of a layer the same"));
    EXPECT_THAT(refusal({{"gate", Colwise{}}}), HasSubstr("gate: every rank needs all logits"));
    EXPECT_THAT(refusal({{"experts.*.down_proj", Rowwise{.output = Replicate{}}}}),
                HasSubstr("experts.0.down_proj: an expert's output stays a partial sum"));
  });
}

TEST(Experts, TwiceTheSamePlan_ChangesNothing) {
  test::on_ranks(2, [](const Axis& axis) {
    Experts layer(kOptions);
    for (int i = 0; i < 2; ++i) parallelize_module(layer, axis, plan_of(Replicate{}));
    EXPECT_TRUE(layer.parameters()[1]->is_split());
  });
}

TEST(Experts, WithoutStyles_RefuseShardsOfTheSequence) {
  test::on_ranks(2, [](const Axis& axis) {
    Experts layer(kOptions);
    parallelize_module(layer, axis, {});
    test::fill(layer, test::weights_for(layer), at::kDouble);
    const Error error = test::thrown_by([&] {
      (void)layer(DTensor::distribute(numbers({2, 4, kOptions.hidden}, 1), axis, Shard{1}), {});
    });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_THAT(error.what(), HasSubstr("the experts have no style in the plan"));
  });
}

TEST(Experts, MoreExpertsPerTokenThanExperts_AreRefused) {
  ExpertsOptions o = kOptions;
  o.top_k = 5;
  EXPECT_EQ(test::thrown_by([&] { Experts layer(o); }).code(), Code::kShape);
}

}  // namespace
}  // namespace cleave::experts_test
