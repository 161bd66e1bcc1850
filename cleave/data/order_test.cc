#include "cleave/data/order.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::order_test {
namespace {

std::vector<int64_t> epoch_of(const SampleOrder& order, int64_t epoch) {
  std::vector<int64_t> out;
  for (int64_t i = epoch * order.num_samples; i < (epoch + 1) * order.num_samples; ++i) {
    out.push_back(order.at(i / order.batch_size, i % order.batch_size));
  }
  return out;
}

TEST(SampleOrder, WithoutShuffle_StepsTakeConsecutiveSamples) {
  const SampleOrder order{.num_samples = 10, .batch_size = 4, .shuffle = false};
  EXPECT_EQ(order.at(0, 0), 0);
  EXPECT_EQ(order.at(1, 3), 7);
  EXPECT_EQ(order.at(2, 1), 9);
  EXPECT_EQ(order.at(2, 2), 0);  // the second epoch begins inside the batch
}

TEST(SampleOrder, EveryEpoch_HasEachSampleOnce) {
  for (int64_t count = 1; count <= 1000; ++count) {
    const SampleOrder order{.num_samples = count, .batch_size = 3, .seed = 5};
    for (const int64_t epoch : {0, 1, 7}) {
      const std::vector<int64_t> samples = epoch_of(order, epoch);
      EXPECT_EQ(std::set<int64_t>(samples.begin(), samples.end()).size(), samples.size()) << count;
      EXPECT_EQ(*std::min_element(samples.begin(), samples.end()), 0);
      EXPECT_EQ(*std::max_element(samples.begin(), samples.end()), count - 1);
    }
  }
}

TEST(SampleOrder, EpochsAndSeeds_GiveDifferentOrders) {
  const SampleOrder order{.num_samples = 100, .batch_size = 10, .seed = 1};
  const SampleOrder other{.num_samples = 100, .batch_size = 10, .seed = 2};
  EXPECT_NE(epoch_of(order, 0), epoch_of(order, 1));
  EXPECT_NE(epoch_of(order, 0), epoch_of(other, 0));
  EXPECT_EQ(epoch_of(order, 3), epoch_of(order, 3));
}

// The batch size only divides the same order of samples differently.
TEST(SampleOrder, SequenceOfSamples_DoesNotDependOnTheBatchSize) {
  const SampleOrder small{.num_samples = 60, .batch_size = 5, .seed = 9};
  const SampleOrder large{.num_samples = 60, .batch_size = 12, .seed = 9};
  EXPECT_EQ(epoch_of(small, 1), epoch_of(large, 1));
}

// Over many seeds every sample is first about equally often, within 5 standard deviations of a
// binomial.
TEST(SampleOrder, FirstSample_IsUniformOverSeeds) {
  constexpr int64_t kCount = 13;
  constexpr int64_t kSeeds = 13000;
  std::vector<int64_t> hits(kCount, 0);
  std::vector<int64_t> followers(kCount, 0);  // distance of the second sample from the first
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SampleOrder order{.num_samples = kCount, .batch_size = kCount, .seed = seed};
    ++hits[static_cast<size_t>(order.at(0, 0))];
    ++followers[static_cast<size_t>((order.at(0, 1) - order.at(0, 0) + kCount) % kCount)];
  }
  const double mean = static_cast<double>(kSeeds) / kCount;
  for (const int64_t count : hits)
    EXPECT_NEAR(static_cast<double>(count), mean, 5 * std::sqrt(mean));
  const double mean_of_distance = static_cast<double>(kSeeds) / (kCount - 1);
  for (size_t i = 1; i < followers.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(followers[i]), mean_of_distance,
                5 * std::sqrt(mean_of_distance));
  }
}

// All ten million places are too slow to check: every 97th must have a sample of its own.
TEST(SampleOrder, TenMillionSamples_CheckedPlacesAreDistinctAndInRange) {
  const SampleOrder order{.num_samples = 10'000'000, .batch_size = 1000, .seed = 8};
  std::set<int64_t> seen;
  for (int64_t place = 0; place < order.num_samples; place += 97) {
    seen.insert(order.at(place / order.batch_size, place % order.batch_size));
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), (order.num_samples + 96) / 97);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), order.num_samples);
}

TEST(SampleOrder, HugeDatasets_NeedNoTable) {
  const int64_t count = int64_t{1} << 40;
  const SampleOrder order{.num_samples = count, .batch_size = 8, .seed = 3};
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 1000; ++step) {
    const int64_t sample = order.at(step * 1000003, 5);
    EXPECT_GE(sample, 0);
    EXPECT_LT(sample, count);
    seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 1000U);
}

TEST(SampleOrder, StepsOfEpochs_AreRoundedUp) {
  const SampleOrder order{.num_samples = 10, .batch_size = 4};
  EXPECT_EQ(order.steps_of(1), 3);
  EXPECT_EQ(order.steps_of(2), 5);
  EXPECT_EQ(order.steps_of(0), 0);
}

TEST(SampleOrder, NoSamples_IsRefused) {
  EXPECT_THROW((void)SampleOrder{.batch_size = 4}.at(0, 0), Error);
}

}  // namespace
}  // namespace cleave::order_test
