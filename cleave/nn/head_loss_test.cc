#include "cleave/nn/head_loss.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/cross_entropy.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the loss of whole logits. In fp64 only the order of sums differs.
namespace cleave::head_loss_test {
namespace {

using test::largest_difference;
using test::on_ranks;

constexpr int64_t kSequences = 3, kTokens = 5, kWidth = 6, kClasses = 23;
constexpr double kTolerance = 1e-13;

struct Result {
  Tensor loss, dx, dweight;
  int64_t dim = 0;  // of what the head returned
};

struct Case {
  double soft_cap = 0;
  bool is_transposed = false;
  bool is_frozen = false;
  double scale = 1;
  at::ScalarType type = at::kDouble;
  bool rounds_to_bf16 = false;  // weight and inputs, before they are used
};

Tensor labels() {
  Tensor out = test::ids({kSequences, kTokens}, kClasses, 5);
  out[1].slice(0, 1).fill_(-100);
  return out;
}

/// The loss twice, plus the sum of the inputs: the upstream gradient of the loss is 2.
Result result_of(const Case& c, const Axis& tp, int64_t most_bytes) {
  Linear head({.in_features = kWidth,
               .out_features = kClasses,
               .bias = false,
               .transposed = c.is_transposed,
               .init = Init::normal(1),
               .soft_cap = c.soft_cap});
  if (tp.size() > 1) head.split_columns(tp);
  if (c.is_frozen) head.weight()->freeze(c.type);
  if (most_bytes > 0) compute_loss_in_parts(head, {.most_bytes = most_bytes, .least_tokens = 0});
  materialize(head, {.seed = 2, .dtype = c.type});
  const Tensor x = at::linspace(-1, 2, kSequences * kTokens * kWidth, at::kDouble)
                       .sin()
                       .view({kSequences, kTokens, kWidth})
                       .to(c.rounds_to_bf16 ? at::kBFloat16 : c.type)
                       .to(c.type)
                       .requires_grad_();
  if (c.rounds_to_bf16) {
    const Tensor& weight = head.weight()->leaf();
    head.weight()->set_leaf(weight.detach().to(at::kBFloat16).to(c.type));
  }
  Context context;
  const int64_t count = 7;
  context.head_loss = std::make_shared<const HeadLoss>(
      HeadLoss{.labels = labels(), .count = count, .scale = c.scale});
  const DTensor y = head(DTensor(x, tp, Replicate{}), context);
  const Tensor loss = y.dim() == 0
                          ? y.local()
                          : cross_entropy(y, labels(), {.valid_tokens = count}).local() * c.scale;
  (2 * loss + x.sum().to(loss.scalar_type())).backward();
  return {.loss = loss.detach(),
          .dx = x.grad(),
          .dweight = head.weight()->leaf().grad(),
          .dim = y.dim()};
}

TEST(HeadLoss, LossAndGradients_EqualThoseOfWholeLogits) {
  for (const Case& c : {Case{}, Case{.soft_cap = 0.8}, Case{.is_transposed = true},
                        Case{.is_frozen = true}, Case{.scale = 128}}) {
    for (const int ranks : {1, 2, 3}) {
      on_ranks(ranks, [&](const Axis& tp) {
        const Result want = result_of(c, tp, 0);
        EXPECT_EQ(want.dim, 3);
        // Parts of one token, of some tokens, and of almost all tokens.
        for (const int64_t most_bytes : {1, 700, 2000 / ranks}) {
          const Result have = result_of(c, tp, most_bytes);
          EXPECT_EQ(have.dim, 0) << most_bytes;
          EXPECT_LE(largest_difference(have.loss, want.loss), kTolerance * c.scale);
          EXPECT_LE(largest_difference(have.dx, want.dx), kTolerance * c.scale);
          ASSERT_EQ(have.dweight.defined(), !c.is_frozen);
          if (c.is_frozen) continue;
          EXPECT_LE(largest_difference(have.dweight, want.dweight), kTolerance * c.scale);
        }
      });
    }
  }
}

// Oracle: the gradient in fp64 for the same weights and inputs, which bf16 holds exactly. The
// product of each part is rounded to bf16. The parts have random signs, so all these roundings
// together are about as large as the one of the whole gradient. If the sum was in bf16 too, its 14
// roundings would have the size of the sum.
TEST(HeadLoss, WeightGradientInBf16_IsAsExactAsThatOfWholeLogits) {
  const Tensor exact = result_of({.rounds_to_bf16 = true}, Axis(), 0).dweight;
  const auto error = [&](int64_t most_bytes) {
    const Tensor have = result_of({.type = at::kBFloat16}, Axis(), most_bytes).dweight;
    return (have.to(at::kDouble) - exact).norm().item<double>();
  };
  EXPECT_LE(error(1), 1.5 * error(0));
}

/// The gradients of the weight and of the input of `factor` times the loss in parts.
std::pair<Tensor, Tensor> gradients_of_multiple(at::ScalarType type, double factor) {
  Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
  compute_loss_in_parts(head, {.most_bytes = 1, .least_tokens = 0});
  materialize(head, {.seed = 2, .dtype = type});
  const Tensor x = at::linspace(-1, 2, kSequences * kTokens * kWidth, at::kDouble)
                       .view({kSequences, kTokens, kWidth})
                       .to(type)
                       .requires_grad_();
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(
      HeadLoss{.labels = labels(), .count = 11, .scale = 1.0 / 1024});
  (head(DTensor(x, Axis(), Replicate{}), context).local() * factor).backward();
  return {head.weight()->leaf().grad().to(at::kDouble), x.grad().to(at::kDouble)};
}

// Oracle: the gradients are linear in the factor, whose type is fp32, and each element is rounded
// once, by at most half a unit in the last place. 16 bits cannot hold 1/3; in fp16, 65536 is
// infinite.
TEST(HeadLoss, MultipleOfTheLossIn16Bits_RoundsGradientsOnly) {
  for (const auto& [type, half_unit] :
       {std::pair(at::kBFloat16, 0x1p-8), std::pair(at::kHalf, 0x1p-11)}) {
    const auto [weight, x] = gradients_of_multiple(type, 1);
    for (const double factor : {1.0 / 3, 65536.0}) {
      const auto [many_weight, many_x] = gradients_of_multiple(type, factor);
      const auto is_close = [&, half = half_unit](const Tensor& have, const Tensor& one) {
        // fp16's smallest step is 2^-24; fp32 rounds the factor by 2^-24 of it.
        const Tensor bound = (one * factor).abs() * (half + 0x1p-23) + 0x1p-25;
        return (have - one * factor).abs().le(bound).all().item<bool>();
      };
      EXPECT_TRUE(is_close(many_weight, weight)) << factor << " " << at::toString(type);
      EXPECT_TRUE(is_close(many_x, x)) << factor << " " << at::toString(type);
    }
  }
}

/// What a head with parts gives for labels of any shape, without gradients.
Tensor result_for(const HeadLoss& wanted, const Tensor& x, Tensor& weight) {
  const at::NoGradGuard no_grad;
  Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
  compute_loss_in_parts(head, {.most_bytes = 200});
  materialize(head, {.dtype = at::kDouble});
  weight = head.weight()->leaf();
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(wanted);
  return head(DTensor(x, Axis(), Replicate{}), context).local();
}

TEST(HeadLoss, CountOfZero_CountsTheLabels) {
  const Tensor x = at::ones({kSequences, kTokens, kWidth}, at::kDouble);
  Tensor weight;
  const Tensor have = result_for({.labels = labels(), .count = 0}, x, weight);
  const Tensor want =
      at::cross_entropy_loss(at::linear(x, weight).flatten(0, 1), labels().flatten());
  EXPECT_LE(largest_difference(have, want), kTolerance);
}

TEST(HeadLoss, LabelsOfAnotherShapeOrNoSequences_GiveTheLogits) {
  const Tensor x = at::ones({kSequences, kTokens, kWidth}, at::kDouble);
  Tensor weight;
  EXPECT_EQ(result_for({.labels = labels().t()}, x, weight).dim(), 3);
  EXPECT_EQ(result_for({.labels = labels().slice(0, 0, 0)}, x.slice(0, 0, 0), weight).dim(), 3);
}

TEST(HeadLoss, SmallLogitsOrAnAdapter_GiveTheLogits) {
  EXPECT_EQ(result_of({}, Axis(), kSequences * kTokens * kClasses * 8).dim, 3);
  EXPECT_EQ(result_of({}, Axis(), kSequences * kTokens * kClasses * 8 - 1).dim, 0);
  Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
  head.attach_lora({.rank = 2});
  compute_loss_in_parts(head, {.most_bytes = 1});
  materialize(head, {.dtype = at::kDouble});
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(HeadLoss{.labels = labels()});
  const Tensor x = at::ones({kSequences, kTokens, kWidth}, at::kDouble);
  EXPECT_EQ(head(DTensor(x, Axis(), Replicate{}), context).dim(), 3);
}

// The head has 6 input features; without gradients, or frozen, it has none to keep.
TEST(HeadLoss, FewTokensOfATrainedHead_GiveTheLogits) {
  const auto dim_of = [](int64_t tokens, bool is_frozen) {
    Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
    if (is_frozen) head.weight()->freeze(at::kDouble);
    compute_loss_in_parts(head, {.most_bytes = 1});
    materialize(head, {.dtype = at::kDouble});
    Context context;
    context.head_loss =
        std::make_shared<const HeadLoss>(HeadLoss{.labels = test::ids({1, tokens}, kClasses, 5)});
    return head(DTensor(at::ones({1, tokens, kWidth}, at::kDouble), Axis(), Replicate{}), context)
        .dim();
  };
  EXPECT_EQ(dim_of(2 * kWidth - 1, false), 3);
  EXPECT_EQ(dim_of(2 * kWidth, false), 0);
  EXPECT_EQ(dim_of(2, true), 0);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(dim_of(2, false), 0);
}

TEST(HeadLoss, WithoutGradients_IsTheLossAlone) {
  const at::NoGradGuard no_grad;
  Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
  compute_loss_in_parts(head, {.most_bytes = 1});
  materialize(head, {.dtype = at::kDouble});
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(HeadLoss{.labels = labels()});
  const Tensor x = at::ones({kSequences, kTokens, kWidth}, at::kDouble);
  const DTensor loss = head(DTensor(x, Axis(), Replicate{}), context);
  const Tensor logits = at::linear(x, head.weight()->leaf());
  const Tensor want =
      at::cross_entropy_loss(logits.flatten(0, 1), labels().flatten(), {}, at::Reduction::Sum);
  EXPECT_LE(largest_difference(loss.local(), want), kTolerance * 15);
  EXPECT_FALSE(loss.local().requires_grad());
}

TEST(HeadLoss, WithoutLabels_IsRefused) {
  Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
  compute_loss_in_parts(head);
  materialize(head, {.dtype = at::kDouble});
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>();
  const DTensor x(at::ones({1, 1, kWidth}, at::kDouble), Axis(), Replicate{});
  EXPECT_EQ(test::thrown_by([&] { (void)head(x, context); }).code(), Code::kUsage);
}

// The upstream gradient of each token is another one.
TEST(HeadLoss, PerTokenOfAFrozenHead_HasTheGradientOfWholeLogits) {
  const auto gradient = [](const Axis& tp, int64_t most_bytes) {
    Linear head({.in_features = kWidth, .out_features = kClasses});
    if (tp.size() > 1) head.split_columns(tp);
    for (const auto& p : head.parameters()) p->freeze(at::kDouble);
    if (most_bytes > 0) compute_loss_in_parts(head, {.most_bytes = most_bytes});
    materialize(head, {.seed = 2, .dtype = at::kDouble});
    Context context;
    context.head_loss =
        std::make_shared<const HeadLoss>(HeadLoss{.labels = labels(), .is_per_token = true});
    const Tensor x = at::linspace(-1, 2, kSequences * kTokens * kWidth, at::kDouble)
                         .view({kSequences, kTokens, kWidth})
                         .requires_grad_();
    const DTensor y = head(DTensor(x, tp, Replicate{}), context);
    EXPECT_EQ(y.dim(), most_bytes > 0 ? 2 : 3);
    const Tensor losses =
        most_bytes > 0
            ? y.local()
            : cross_entropy(y, labels(), {.reduction = CrossEntropyOptions::Reduction::kNone})
                  .local();
    const Tensor factors = at::linspace(-1, 3, losses.numel(), at::kDouble).view(losses.sizes());
    (losses * factors).sum().backward();
    return x.grad();
  };
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const Axis& tp) {
      const Tensor want = gradient(tp, 0);
      for (const int64_t most_bytes : {1, 700, 2000 / ranks}) {
        EXPECT_LE(largest_difference(gradient(tp, most_bytes), want), kTolerance) << most_bytes;
      }
    });
  }
}

// Oracle: a closed form. Each of the other classes has the probability e^-18 = 1.5e-8, which is 0
// in fp16, and the gradient of the one input is the sum of their probabilities times -18.
TEST(HeadLoss, PerTokenInFp16_KeepsSmallProbabilities) {
  Linear head({.in_features = 1, .out_features = kClasses, .bias = false});
  head.weight()->freeze(at::kHalf);
  compute_loss_in_parts(head, {.most_bytes = 1});
  materialize(head, {.seed = 2, .dtype = at::kHalf});
  Tensor weight = at::full({kClasses, 1}, -18, at::kHalf);
  weight[0].fill_(0);
  head.weight()->set_leaf(weight);
  Context context;
  context.head_loss = std::make_shared<const HeadLoss>(
      HeadLoss{.labels = at::zeros({1, 2}, at::kLong), .is_per_token = true});
  const Tensor x = at::ones({1, 2, 1}, at::kHalf).requires_grad_();
  const DTensor y = head(DTensor(x, Axis(), Replicate{}), context);
  ASSERT_EQ(y.dim(), 2);
  constexpr double kLossScale = 65536;
  (y.local() * kLossScale).sum().backward();
  const double p = std::exp(-18) / (1 + (kClasses - 1) * std::exp(-18));
  const double want = (kClasses - 1) * p * -18 * kLossScale;
  // Half a unit of fp16's smallest numbers beside p times 256, and roundings of the gradients.
  const double relative = 0x1p-25 / (256 * p) + 4 * 0x1p-11;
  EXPECT_NEAR(x.grad()[0][0].item<double>(), want, -want * relative);
}

TEST(HeadLoss, PerToken_IsTheLossOfEachTokenUnlessTheHeadIsTrained) {
  const auto result = [](const Axis& tp, int64_t most_bytes) {
    Linear head({.in_features = kWidth, .out_features = kClasses, .bias = false});
    if (tp.size() > 1) head.split_columns(tp);
    if (most_bytes > 0) compute_loss_in_parts(head, {.most_bytes = most_bytes, .least_tokens = 0});
    materialize(head, {.seed = 2, .dtype = at::kDouble});
    Context context;
    context.head_loss = std::make_shared<const HeadLoss>(
        HeadLoss{.labels = labels(), .count = 7, .scale = 128, .is_per_token = true});
    const Tensor x = at::linspace(-1, 2, kSequences * kTokens * kWidth, at::kDouble).sin();
    return head(DTensor(x.view({kSequences, kTokens, kWidth}), tp, Replicate{}), context);
  };
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const Axis& tp) {
      EXPECT_EQ(result(tp, 700).dim(), 3);
      const at::NoGradGuard no_grad;
      const DTensor logits = result(tp, 0).redistribute(Replicate{});
      const Tensor want = at::cross_entropy_loss(logits.local().flatten(0, 1), labels().flatten(),
                                                 {}, at::Reduction::None)
                              .view({kSequences, kTokens});
      for (const int64_t most_bytes : {1, 700, 2000 / ranks}) {
        EXPECT_LE(largest_difference(result(tp, most_bytes).local(), want), kTolerance);
      }
    });
  }
}

}  // namespace
}  // namespace cleave::head_loss_test
