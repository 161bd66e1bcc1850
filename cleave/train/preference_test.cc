#include "cleave/train/preference.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/train/step.h"
#include "tests/support/ranks.h"

namespace cleave::preference_test {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Oracle: -log sigmoid(m) and its derivative, -(1 - sigmoid(m)) times that of the margin.
TEST(PairTerms, LogProbs_GiveTheClosedFormAndItsGradient) {
  constexpr double kBeta = 0.3;
  const Tensor reference = at::tensor({-4.0, -6.0, -1.0, -2.0, 0.0, 0.0}, at::kDouble);
  const Tensor policy =
      test::leaf_of(at::tensor({-3.0, -7.5, -2.0, -1.0, -400.0, 400.0}, at::kDouble));
  const double margins[] = {kBeta * 2.5, kBeta * -2, kBeta * -800};
  const PairTerms terms = pair_terms(policy, reference, kBeta);
  terms.losses.sum().backward();
  for (int64_t pair = 0; pair < 3; ++pair) {
    const double m = margins[pair];
    // log(1 + exp(-m)), without overflow
    const double loss = std::fmax(-m, 0) + std::log1p(std::exp(-std::fabs(m)));
    const double slope = -kBeta * (1 - sigmoid(m));
    EXPECT_NEAR(terms.margins[pair].item<double>(), m, 1e-12);
    EXPECT_NEAR(terms.losses[pair].item<double>(), loss, 1e-12);
    EXPECT_NEAR(policy.grad()[2 * pair].item<double>(), slope, 1e-12);
    EXPECT_NEAR(policy.grad()[2 * pair + 1].item<double>(), -slope, 1e-12);
  }
}

/// Four sequences of three tokens. The first target of each is ignored, as a prompt's is; the
/// second pair has none, as that of a rank without a sequence.
Tensor targets_for_test() {
  return at::tensor({-100, 4, 2, -100, 1, -100, -100, -100, -100, -100, -100, -100}, at::kLong)
      .view({4, 3});
}

// Oracle: libtorch's log_softmax and autograd on whole logits.
TEST(PairSums, LogitsShardedByClass_GiveTheSumsAndGradientOfWholeOnes) {
  const Tensor values = test::numbers({4, 3, 7}, 3);
  const Tensor targets = targets_for_test();
  const Tensor reference = at::tensor({-3.0, -1.5, 0.0, 0.0}, at::kDouble);
  const Tensor whole = test::leaf_of(values);
  const Tensor p = whole.log_softmax(-1);
  const Tensor margin = ((p[0][1][4] + p[0][2][2] + 3.0) - (p[1][1][1] + 1.5)) * 0.5;
  const Tensor want = at::log_sigmoid(margin).neg();
  want.backward();
  test::on_ranks(2, [&](const Axis& axis) {
    const Tensor leaf = test::leaf_of(values);
    const DTensor logits = DTensor(leaf, axis, Replicate{}).redistribute(Shard{-1});
    const PairSums sums = pair_sums(logits, targets, reference, 0.5);
    EXPECT_EQ(sums.number, 1);
    EXPECT_NEAR(sums.margin, margin.item<double>(), 1e-12);
    EXPECT_EQ(sums.right, margin.item<double>() > 0 ? 1 : 0);
    EXPECT_NEAR(sums.loss.item<double>(), want.item<double>(), 1e-12);
    sums.loss.backward();
    EXPECT_LE((leaf.grad() - whole.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_TRUE(leaf.grad().narrow(0, 2, 2).eq(0).all().item<bool>());
  });
}

TEST(MicroBatches, OfPairs_KeepPairsWholeAndFillWithOneWithoutLabels) {
  Batch batch;
  batch.ids = at::arange(12, at::kLong).view({6, 2});
  batch.labels = batch.ids.clone();
  batch.reference = at::arange(6, at::kDouble);
  batch.rows_per_sample = 2;
  const auto parts = micro_batches_of(batch, 2, 3);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].ids.size(0), 4);
  EXPECT_TRUE(at::equal(parts[1].reference, at::tensor({4.0, 5.0}, at::kDouble)));
  EXPECT_EQ(parts[2].ids.size(0), 2);
  EXPECT_TRUE(parts[2].labels.eq(-100).all().item<bool>());
  EXPECT_EQ(parts[2].rows_per_sample, 2);
}

}  // namespace
}  // namespace cleave::preference_test
