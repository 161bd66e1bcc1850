#include "cleave/nn/label_loss.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/cross_entropy.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: libtorch's mean squared error of the labelled rows, in fp64.
namespace cleave::label_loss_test {
namespace {

TEST(SquaredError, LabelledRows_HaveTorchsLossAndGradient) {
  const Tensor logits = test::numbers({5, 1}, 1);
  Tensor labels = test::numbers({5}, 2);
  labels[0] = -100.0;  // a number like any other
  labels[3] = NAN;
  const Tensor real = at::tensor({0, 1, 2, 4});
  const Tensor wanted = test::leaf_of(logits);
  const Tensor want = at::mse_loss(wanted.squeeze(1).index_select(0, real),
                                   labels.index_select(0, real), at::Reduction::Sum);
  want.backward();
  for (const int tp : {1, 2}) {
    for (const Placement& placement : {Placement(Replicate{}), Placement(Shard{-1})}) {
      test::on_ranks(tp, [&](const Axis& axis) {
        const Tensor leaf = test::leaf_of(logits);
        const DTensor placed = DTensor::distribute(leaf, axis, placement);
        const DTensor loss = label_loss(placed, labels, /*count=*/8);
        EXPECT_TRUE(loss.placement().is_replicate());
        EXPECT_NEAR(loss.local().item<double>(), want.item<double>() / 8, 1e-12);
        EXPECT_NEAR(squared_error(placed, labels).local().item<double>(), want.item<double>() / 4,
                    1e-12);
        loss.local().backward();
        EXPECT_LE(test::largest_difference(leaf.grad(), wanted.grad() / 8), 1e-12);
      });
    }
  }
}

// As a loss of bf16 logits in transformers.
TEST(SquaredError, NarrowLogits_HaveALossInFp32) {
  const Tensor logits = at::tensor({1.0}).to(at::kBFloat16).view({1, 1});
  const DTensor loss =
      squared_error(DTensor(logits, Axis(), Replicate{}), at::tensor({1.0 + 0x1p-12}, at::kDouble));
  EXPECT_EQ(loss.local().scalar_type(), at::kFloat);
  EXPECT_EQ(loss.local().item<double>(), 0x1p-24);
}

TEST(SquaredError, SeveralNumbersPerSequence_AreRefused) {
  const Error error = test::thrown_by([] {
    squared_error(DTensor(at::zeros({3, 2}), Axis(), Replicate{}), at::zeros({3}, at::kDouble));
  });
  EXPECT_EQ(error.code(), Code::kShape);
}

// Oracle: the definition, -y ln(p) - (1 - y) ln(1 - p), of the sigmoid p in fp64.
TEST(BinaryCrossEntropy, LabelledClasses_HaveTheDefinitionsLossAndGradient) {
  const Tensor logits = test::numbers({4, 3}, 1) * 5;
  Tensor labels = test::numbers({4, 3}, 2).gt(0).to(at::kDouble);
  labels[0][1] = 0.25;
  labels[1][2] = NAN;
  labels[3] = NAN;
  const Tensor real = labels.eq(labels);
  const Tensor wanted = test::leaf_of(logits);
  const Tensor p = wanted.masked_select(real).neg().exp().add(1).reciprocal();
  const Tensor y = labels.masked_select(real);
  const Tensor want = -(y * p.log() + (1 - y) * (1 - p).log()).sum();
  want.backward();
  for (const int tp : {1, 2}) {
    for (const Placement& placement : {Placement(Replicate{}), Placement(Shard{-1})}) {
      test::on_ranks(tp, [&](const Axis& axis) {
        const Tensor leaf = test::leaf_of(logits);
        const DTensor placed = DTensor::distribute(leaf, axis, placement);
        const DTensor loss = label_loss(placed, labels, /*count=*/24);
        EXPECT_TRUE(loss.placement().is_replicate());
        EXPECT_NEAR(loss.local().item<double>(), want.item<double>() / 24, 1e-12);
        EXPECT_NEAR(binary_cross_entropy(placed, labels).local().item<double>(),
                    want.item<double>() / 8, 1e-12);
        loss.local().backward();
        EXPECT_LE(test::largest_difference(leaf.grad(), wanted.grad() / 24), 1e-12);
      });
    }
  }
}

// ln(1 + exp(x)) of a wrong class is x where exp overflows, and 0 of a right one.
TEST(BinaryCrossEntropy, LargeNarrowLogits_HaveAFiniteLossInFp32) {
  const Tensor logits = at::tensor({1000.0, -1000.0, 1000.0}).to(at::kBFloat16).view({1, 3});
  const DTensor loss = binary_cross_entropy(DTensor(logits, Axis(), Replicate{}),
                                            at::tensor({0.0, 0.0, 1.0}, at::kDouble).view({1, 3}));
  EXPECT_EQ(loss.local().scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(loss.local().item<float>(), 1000.0F / 3);
}

TEST(BinaryCrossEntropy, OtherNumbersOfClasses_AreRefused) {
  for (const auto& sizes : {std::vector<int64_t>{3, 1}, std::vector<int64_t>{2, 2}}) {
    const Error error = test::thrown_by([&] {
      binary_cross_entropy(DTensor(at::zeros({3, 2}), Axis(), Replicate{}),
                           at::zeros(sizes, at::kDouble));
    });
    EXPECT_EQ(error.code(), Code::kShape);
  }
}

TEST(LabelLoss, Classes_HaveTheirCrossEntropy) {
  const DTensor logits(test::numbers({3, 4}, 3), Axis(), Replicate{});
  const Tensor labels = at::tensor({2, -100, 0}, at::kLong);
  EXPECT_TRUE(at::equal(label_loss(logits, labels, 7).local(),
                        cross_entropy(logits, labels, {.valid_tokens = 7}).local()));
  EXPECT_TRUE(at::equal(has_label(labels), at::tensor({1, 0, 1}, at::kLong).to(at::kBool)));
}

TEST(NoLabels, OfEitherType_DoNotCount) {
  for (const Tensor& labels : {at::zeros({2, 3}, at::kLong), at::zeros({4}, at::kDouble)}) {
    const Tensor none = no_labels_like(labels);
    EXPECT_EQ(none.sizes(), labels.sizes());
    EXPECT_EQ(none.scalar_type(), labels.scalar_type());
    EXPECT_FALSE(has_label(none).any().item<bool>());
  }
}

}  // namespace
}  // namespace cleave::label_loss_test
