#include "cleave/data/batch.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/list_dataset.h"
#include "tests/support/thrown.h"

namespace cleave::batch_test {
namespace {

using test::ListDataset;
using test::thrown_by;

Sample row(std::vector<int64_t> ids) {
  Sample sample;
  sample.ids = std::move(ids);
  return sample;
}

/// Sample k has 1 + k % 5 ids that begin with 10 k; every third has labels that differ from its
/// ids.
ListDataset uneven_rows(int64_t count) {
  std::vector<Sample> samples;
  for (int64_t k = 0; k < count; ++k) {
    Sample sample;
    for (int64_t i = 0; i <= k % 5; ++i) sample.ids.push_back(10 * k + i);
    if (k % 3 == 0) sample.labels.assign(sample.ids.size(), k);
    samples.push_back(sample);
  }
  return ListDataset(std::move(samples));
}

SampleOrder in_order(const Dataset& dataset, int64_t batch_size) {
  return {.num_samples = dataset.size(), .batch_size = batch_size, .shuffle = false};
}

at::Tensor table(std::initializer_list<std::initializer_list<int64_t>> rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& values : rows) tensors.push_back(at::tensor(values, at::kLong));
  return at::stack(tensors);
}

TEST(MakeBatch, UnevenRows_ArePaddedToTheLongestWithoutLabelsThere) {
  Sample labelled = row({7, 8});
  labelled.labels = {-100, 3};
  const ListDataset data({row({1, 2, 3}), labelled, row({9})});
  const Batch batch = make_batch(data, in_order(data, 3), 0, 0, 3, 55);
  EXPECT_TRUE(at::equal(batch.ids, table({{1, 2, 3}, {7, 8, 55}, {9, 55, 55}})));
  EXPECT_TRUE(at::equal(batch.labels, table({{1, 2, 3}, {-100, 3, -100}, {9, -100, -100}})));
  ASSERT_TRUE(batch.attention_mask.defined());
  EXPECT_EQ(batch.attention_mask.scalar_type(), at::kBool);
  EXPECT_TRUE(
      at::equal(batch.attention_mask.to(at::kLong), table({{1, 1, 1}, {1, 1, 0}, {1, 0, 0}})));
  EXPECT_FALSE(batch.token_types.defined());
}

TEST(MakeBatch, RowsOfOneLength_NeedNoMask) {
  Sample ones = row({3, 4});
  ones.attention_mask = {1, 1};
  const ListDataset data({row({1, 2}), ones});
  const Batch batch = make_batch(data, in_order(data, 2), 0, 0, 2);
  EXPECT_TRUE(at::equal(batch.ids, table({{1, 2}, {3, 4}})));
  EXPECT_TRUE(at::equal(batch.labels, batch.ids));
  EXPECT_FALSE(batch.attention_mask.defined());
}

TEST(MakeBatch, MasksAndTokenTypesOfTheData_AreKept) {
  Sample masked = row({1, 2});
  masked.attention_mask = {0, 1};
  Sample typed = row({3, 4});
  typed.token_types = {0, 1};
  const ListDataset data({masked, typed});
  const Batch batch = make_batch(data, in_order(data, 2), 0, 0, 2);
  ASSERT_TRUE(batch.attention_mask.defined());
  EXPECT_TRUE(at::equal(batch.attention_mask.to(at::kLong), table({{0, 1}, {1, 1}})));
  ASSERT_TRUE(batch.token_types.defined());
  EXPECT_TRUE(at::equal(batch.token_types, table({{0, 0}, {0, 1}})));
  EXPECT_TRUE(at::equal(batch.labels, table({{-100, 2}, {3, 4}})));
  masked.labels = {1, 2};
  const ListDataset labelled({masked, typed});
  EXPECT_TRUE(at::equal(make_batch(labelled, in_order(labelled, 2), 0, 0, 2).labels,
                        table({{1, 2}, {3, 4}})));
}

TEST(MakeBatch, WithoutShuffle_StepsTakeConsecutiveSamplesAndWrapAround) {
  const ListDataset data({row({0}), row({1}), row({2}), row({3}), row({4})});
  const SampleOrder order = in_order(data, 2);
  EXPECT_TRUE(at::equal(make_batch(data, order, 0, 0, 2).ids, table({{0}, {1}})));
  EXPECT_TRUE(at::equal(make_batch(data, order, 1, 0, 2).ids, table({{2}, {3}})));
  EXPECT_TRUE(at::equal(make_batch(data, order, 2, 0, 2).ids, table({{4}, {0}})));
}

TEST(MakeBatch, PartsOfAnyNumberOfRanks_JoinToTheSameGlobalBatch) {
  const ListDataset data = uneven_rows(23);
  const SampleOrder order{.num_samples = 23, .batch_size = 8, .shuffle = true, .seed = 4};
  for (int64_t step = 0; step < 6; ++step) {
    const Batch whole = make_batch(data, order, step, 0, 8, 1);
    for (int64_t place = 0; place < 8; ++place) {
      EXPECT_EQ(whole.ids[place][0].item<int64_t>(), 10 * order.at(step, place));
    }
    for (const int64_t dp : {1, 2, 4}) {
      std::vector<at::Tensor> ids, labels, masks;
      for (int64_t rank = 0; rank < dp; ++rank) {
        const Batch part = make_batch(data, order, step, 8 / dp * rank, 8 / dp * (rank + 1), 1);
        EXPECT_EQ(part.first_row, 8 / dp * rank);
        ids.push_back(part.ids);
        labels.push_back(part.labels);
        ASSERT_TRUE(part.attention_mask.defined());
        masks.push_back(part.attention_mask);
      }
      EXPECT_TRUE(at::equal(at::cat(ids), whole.ids));
      EXPECT_TRUE(at::equal(at::cat(labels), whole.labels));
      EXPECT_TRUE(at::equal(at::cat(masks), whole.attention_mask));
    }
  }
}

TEST(MakeBatch, RowsOutsideTheBatch_AreRefused) {
  const ListDataset data = uneven_rows(9);
  const SampleOrder order = in_order(data, 4);
  EXPECT_EQ(make_batch(data, order, 0, 4, 4).ids.size(0), 0);
  EXPECT_EQ(thrown_by([&] { make_batch(data, order, 0, 0, 5); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([&] { make_batch(data, order, 0, -1, 2); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([&] { make_batch(data, order, 0, 3, 2); }).code(), Code::kUsage);
}

TEST(BatchRows, AreThoseRowsWithTheirGlobalIndex) {
  const ListDataset data = uneven_rows(12);
  const Batch batch = make_batch(data, in_order(data, 12), 0, 4, 12);
  const Batch part = batch.rows(2, 5);
  EXPECT_EQ(part.first_row, 6);
  EXPECT_TRUE(at::equal(part.ids, batch.ids.slice(0, 2, 5)));
  EXPECT_TRUE(at::equal(part.labels, batch.labels.slice(0, 2, 5)));
  EXPECT_TRUE(at::equal(part.attention_mask, batch.attention_mask.slice(0, 2, 5)));
  EXPECT_FALSE(part.token_types.defined());
}

// Whichever sequence of the batch comes last.
TEST(MakeBatch, SequencesWithAndWithoutAClass_AreRefused) {
  Sample classified = row({3, 4});
  classified.label = 1;
  const std::vector<std::vector<Sample>> mixes = {{classified, row({5, 6})},
                                                  {row({5, 6}), classified}};
  for (const auto& samples : mixes) {
    const ListDataset data(samples);
    const Error error = thrown_by([&] { make_batch(data, in_order(data, 2), 0, 0, 2); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find("give all sequences a class, or none"),
              std::string::npos)
        << error.what();
  }
}

TEST(BatchHash, ChangesWithOneIdOrLabelAndWithNothingElse) {
  const ListDataset data = uneven_rows(8);
  const Batch batch = make_batch(data, in_order(data, 8), 0, 0, 8);
  EXPECT_EQ(batch.hash(), make_batch(data, in_order(data, 8), 0, 0, 8).hash());
  for (const auto member : {&Batch::ids, &Batch::labels}) {
    for (const int64_t place : {0, 17, 39}) {
      Batch other = batch;
      other.*member = (batch.*member).clone();
      (other.*member).view(-1)[place] += 1;
      EXPECT_NE(batch.hash(), other.hash()) << place;
    }
  }
  Batch turned = batch;
  turned.ids = batch.ids.view({5, 8});
  turned.labels = batch.labels.view({5, 8});
  EXPECT_NE(batch.hash(), turned.hash());
  EXPECT_EQ(batch.rows(2, 4).hash(), make_batch(data, in_order(data, 8), 0, 2, 4).hash());
}

}  // namespace
}  // namespace cleave::batch_test
