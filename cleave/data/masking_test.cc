#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/data/batch.h"
#include "tests/support/ranks.h"

namespace cleave::masking_test {
namespace {

constexpr int64_t kMask = 4, kVocabulary = 1000;

MaskingOptions options() {
  MaskingOptions o{.mask_id = kMask,
                   .vocab_size = kVocabulary,
                   .is_special = std::vector<bool>(kVocabulary, false),
                   .seed = 7};
  for (int64_t id = 0; id < 5; ++id) o.is_special[static_cast<size_t>(id)] = true;
  return o;
}

Batch batch_of(const Tensor& ids, int64_t first_row = 0) {
  Batch batch;
  batch.ids = ids;
  batch.labels = ids;
  batch.first_row = first_row;
  return batch;
}

int64_t count(const Tensor& t) {
  return t.sum().item<int64_t>();
}

/// Expects `hits` within five standard deviations of the mean of a binomial.
void expect_share(int64_t hits, int64_t tries, double share) {
  const auto n = static_cast<double>(tries);
  EXPECT_NEAR(static_cast<double>(hits), n * share, 5 * std::sqrt(n * share * (1 - share)));
}

TEST(Masked, Shares_AreFifteenPercentAndOfTheseEightyTenTen) {
  const Tensor ids = test::ids({256, 128}, kVocabulary - 5, 1) + 5;
  const Batch out = masked(batch_of(ids), options(), 0);
  const Tensor selected = out.labels.ne(-100);
  const int64_t num_selected = count(selected);
  expect_share(num_selected, ids.numel(), 0.15);
  expect_share(count(selected.logical_and(out.ids.eq(kMask))), num_selected, 0.8);
  // A random word equals the original once in a thousand.
  expect_share(count(selected.logical_and(out.ids.eq(ids))), num_selected, 0.1 + 0.1 / kVocabulary);
  EXPECT_TRUE(at::equal(out.labels.masked_select(selected), ids.masked_select(selected)));
  const Tensor others = selected.logical_not();
  EXPECT_TRUE(at::equal(out.ids.masked_select(others), ids.masked_select(others)));
  EXPECT_GE(out.ids.min().item<int64_t>(), 0);
  EXPECT_LT(out.ids.max().item<int64_t>(), kVocabulary);
}

TEST(Masked, TheRowsOfEachRank_AreThoseOfTheWholeBatch) {
  const Tensor ids = test::ids({8, 16}, kVocabulary, 2);
  const Batch whole = masked(batch_of(ids), options(), 3);
  for (const int64_t first : {0, 3, 5}) {
    const Batch part = masked(batch_of(ids.narrow(0, first, 3), first), options(), 3);
    EXPECT_TRUE(at::equal(part.ids, whole.ids.narrow(0, first, 3)));
    EXPECT_TRUE(at::equal(part.labels, whole.labels.narrow(0, first, 3)));
  }
  const Batch later = masked(batch_of(ids), options(), 4);
  EXPECT_FALSE(at::equal(later.labels, whole.labels));
}

TEST(Masked, SpecialAndPaddedTokens_StayAndEachRowHasOneSelected) {
  // Each sequence is one word between special tokens, then padding with label -100.
  const Tensor ids = at::tensor({2, 500, 3, 0}, at::kLong).repeat({64, 1});
  Batch batch = batch_of(ids);
  batch.labels = ids.masked_fill(ids.eq(0), -100);
  const Batch out = masked(batch, options(), 0);
  EXPECT_TRUE(
      at::equal(out.labels, at::tensor({-100, 500, -100, -100}, at::kLong).repeat({64, 1})));
  for (const int64_t place : {0, 2, 3}) {
    EXPECT_TRUE(at::equal(out.ids.select(1, place), ids.select(1, place)));
  }
  EXPECT_TRUE(at::equal(batch.ids, ids)) << "the input batch must not change";
}

}  // namespace
}  // namespace cleave::masking_test
