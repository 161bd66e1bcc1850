#include "cleave/nn/balance_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/experts.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: the formula over whole tensors with autograd, in fp64; transformers' losses and gradients
// in train/balance_loss_test.cc.
namespace cleave::balance_loss_test {
namespace {

using test::numbers;

constexpr int64_t kExperts = 4, kTopK = 2;
constexpr double kCoefficient = 0.5, kWeight = 3;

const ExpertsOptions kOptions{
    .hidden = 7, .intermediate = 5, .num_experts = kExperts, .top_k = kTopK, .names = {}};

std::shared_ptr<BalanceLoss> new_loss() {
  return std::make_shared<BalanceLoss>(
      BalanceOptions{.num_experts = kExperts, .top_k = kTopK, .coefficient = kCoefficient}, kWeight,
      at::kCPU);
}

/// The loss of logits [N, E] and a mask [N] of numbers, with a gradient of the probabilities.
Tensor formula(const Tensor& logits, const Tensor& mask) {
  const Tensor p = logits.softmax(-1);
  const Tensor least = std::get<0>(p.sort(-1, /*descending=*/true)).select(-1, kTopK - 1);
  const Tensor chosen = p.ge(least.unsqueeze(-1)).to(at::kDouble).detach();
  const Tensor rows = mask.unsqueeze(-1);
  const Tensor f = (chosen * rows).sum(0) / mask.sum();
  return kExperts * (f * (p * rows).sum(0) / mask.sum()).sum();
}

/// The first 3 of the 5 tokens of the second sequence count.
Tensor mask_of_two() {
  Tensor mask = at::ones({2, 5}, at::kBool);
  mask[1].slice(0, 3).fill_(false);
  return mask;
}

/// Adds the tokens of a layer, and returns their probabilities.
Tensor add(BalanceLoss& loss, const Tensor& logits, const Tensor& mask) {
  const Tensor p = loss.with_gradient(router_probabilities(logits), mask);
  loss.count(p, route(p, kTopK, true).experts, mask);
  return p;
}

TEST(BalanceLoss, TwoLayersWithPadding_EqualTheFormulaOverAllTheirTokens) {
  for (const Tensor& mask : {Tensor(), mask_of_two()}) {
    const Tensor logits = test::leaf_of(numbers({20, kExperts}, 1));
    const Tensor same = test::leaf_of(logits);
    const auto loss = new_loss();
    const Tensor first = add(*loss, logits.narrow(0, 0, 10), mask);
    const Tensor second = add(*loss, logits.narrow(0, 10, 10), mask);
    loss->close(loss->sums());
    // Its gradient is added to that of the main loss, which here is zero.
    ((first + second) * 0).sum().backward();
    const Tensor all =
        mask.defined() ? mask.flatten().to(at::kDouble).repeat({2}) : at::ones({20}, at::kDouble);
    const Tensor want = formula(same, all);
    (want * (kWeight * kCoefficient)).backward();
    EXPECT_NEAR(loss->value().item<double>(), want.item<double>(), 1e-14);
    EXPECT_NEAR(loss->summand().item<double>(), 1.5 * want.item<double>(), 1e-14);
    EXPECT_LE(test::largest_difference(logits.grad(), same.grad()), 1e-14);
    EXPECT_GT(same.grad().abs().max().item<double>(), 1e-3);
  }
}

// The closed form: all tokens have the same probabilities, 1 / E each, so that E sum f_e / E is the
// number of experts that a token has.
TEST(BalanceLoss, EqualProbabilities_GiveTheNumberOfExpertsOfAToken) {
  const auto loss = new_loss();
  (void)add(*loss, at::zeros({6, kExperts}, at::kDouble), {});
  loss->close(loss->sums());
  EXPECT_DOUBLE_EQ(loss->value().item<double>(), kTopK);
}

TEST(BalanceLoss, SumsOfEarlierStages_GiveTheSameAsOneStage) {
  const Tensor logits = numbers({8, kExperts}, 2);
  const auto whole = new_loss(), stage = new_loss(), last = new_loss();
  (void)add(*whole, logits, {});
  (void)add(*stage, logits.narrow(0, 0, 4), {});
  last->resume(stage->sums());
  (void)add(*last, logits.narrow(0, 4, 4), {});
  EXPECT_LE(test::largest_difference(last->sums(), whole->sums()), 1e-14);
}

TEST(BalanceLoss, OnlyPadding_IsNoLoss) {
  const auto loss = new_loss();
  const Tensor logits = test::leaf_of(numbers({3, kExperts}, 3));
  const Tensor p = add(*loss, logits, at::zeros({1, 3}, at::kBool));
  loss->close(loss->sums());
  p.sum().backward();
  EXPECT_EQ(loss->value().item<double>(), 0);
  EXPECT_TRUE(at::isfinite(logits.grad()).all().item<bool>());
}

TEST(BalanceLoss, BackwardBeforeCloseAndAMaskOfOtherTokens_AreRefused) {
  const auto loss = new_loss();
  const Tensor logits = test::leaf_of(numbers({3, kExperts}, 3));
  const Tensor p = add(*loss, logits, {});
  EXPECT_EQ(test::thrown_by([&] { p.sum().backward(); }).code(), Code::kUsage);
  EXPECT_EQ(test::thrown_by([&] { (void)add(*loss, logits, mask_of_two()); }).code(), Code::kShape);
}

/// Gradients of all weights and of the input of experts with the auxiliary loss of their tokens,
/// by name, and the loss.
struct Gradients {
  test::Weights of;
  double loss = 0;
};

Gradients gradients_of(bool recomputes, const Tensor& mask) {
  Experts layer(kOptions);
  test::fill(layer, test::weights_for(layer), at::kDouble);
  if (recomputes) recompute(layer);
  Context context;
  context.balance = new_loss();
  context.key_mask = mask;
  const Tensor x = test::leaf_of(numbers({2, 5, kOptions.hidden}, 1));
  const Tensor y = layer(DTensor(x, Axis(), Replicate{}), context).local();
  context.balance->close(context.balance->sums());
  y.sum().backward();
  Gradients out{.of = {{"x", x.grad()}}, .loss = context.balance->value().item<double>()};
  for (const auto& p : layer.parameters()) out.of[p->name()] = p->leaf().grad();
  return out;
}

// Oracle: the gradients without the auxiliary loss plus those of the formula.
TEST(Experts, WithAnAuxiliaryLoss_HaveItsGradientInAddition) {
  for (const Tensor& mask : {Tensor(), mask_of_two()}) {
    Experts layer(kOptions);
    test::fill(layer, test::weights_for(layer), at::kDouble);
    const Tensor x = test::leaf_of(numbers({2, 5, kOptions.hidden}, 1));
    layer(DTensor(x, Axis(), Replicate{}), {}).local().sum().backward();
    const Tensor all =
        mask.defined() ? mask.flatten().to(at::kDouble) : at::ones({10}, at::kDouble);
    const Tensor want = formula(x.flatten(0, 1).matmul(layer.router().weight()->leaf().t()), all);
    (want * (kWeight * kCoefficient)).backward();
    for (const bool recomputes : {false, true}) {
      const Gradients got = gradients_of(recomputes, mask);
      EXPECT_NEAR(got.loss, want.item<double>(), 1e-14);
      EXPECT_LE(test::largest_difference(got.of.at("x"), x.grad()), 1e-12);
      for (const auto& p : layer.parameters()) {
        EXPECT_LE(test::largest_difference(got.of.at(p->name()), p->leaf().grad()), 1e-12)
            << p->name() << " recomputes: " << recomputes;
      }
    }
  }
}

}  // namespace
}  // namespace cleave::balance_loss_test
