#include "cleave/nn/label_loss.h"

#include <cmath>

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
