#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "cleave/report/page.h"

namespace cleave::curve_test {
namespace {

/// Values without a pattern: from -1 to 1.
std::vector<double> noise(size_t count) {
  std::vector<double> values;
  uint64_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    values.push_back(static_cast<double>(state >> 11) / 0x1p52 - 1);
  }
  return values;
}

TEST(Buckets, AnyNumberOfValues_CoverAllEvenly) {
  for (const size_t total : {0U, 1U, 2U, 99U, 100U, 101U, 250U, 20000U}) {
    const std::vector<size_t> begins = buckets(total, 100);
    EXPECT_EQ(begins.size(), std::min<size_t>(total, 100) + 1);
    EXPECT_EQ(begins.front(), 0U);
    EXPECT_EQ(begins.back(), total);
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      EXPECT_GE(begins[i + 1] - begins[i], std::max<size_t>(total / 100, 1)) << total;
      EXPECT_LE(begins[i + 1] - begins[i], (total + 99) / 100) << total;
    }
  }
}

TEST(Decimated, FewValues_AreTheCurveItself) {
  const std::vector<double> values = {3, -1, 2};
  const Curve curve = decimated(values, buckets(3, 100));
  EXPECT_EQ(curve.mean, values);
  EXPECT_EQ(curve.low, values);
  EXPECT_EQ(curve.high, values);
}

// Oracle: sums over the values whose index belongs to the bucket. No extreme gets lost.
TEST(Decimated, ManyValues_HaveTheMeanMinimumAndMaximumOfEachBucket) {
  std::vector<double> values = noise(20011);
  values[7777] = 50;
  values[12345] = -60;
  const std::vector<size_t> begins = buckets(values.size(), 800);
  const Curve curve = decimated(values, begins);
  ASSERT_EQ(curve.mean.size(), 800U);
  std::vector<double> sum(800), low(800, INFINITY), high(800, -INFINITY), count(800);
  for (size_t i = 0, bucket = 0; i < values.size(); ++i) {
    if (i == begins[bucket + 1]) ++bucket;
    sum[bucket] += values[i];
    count[bucket] += 1;
    low[bucket] = std::min(low[bucket], values[i]);
    high[bucket] = std::max(high[bucket], values[i]);
  }
  for (size_t b = 0; b < 800; ++b) {
    // At most 26 additions of numbers up to 60.
    EXPECT_NEAR(curve.mean[b], sum[b] / count[b], 26 * 60 * 0x1p-52);
  }
  EXPECT_EQ(curve.low, low);
  EXPECT_EQ(curve.high, high);
  EXPECT_EQ(*std::max_element(curve.high.begin(), curve.high.end()), 50);
  EXPECT_EQ(*std::min_element(curve.low.begin(), curve.low.end()), -60);
}

TEST(Decimated, UnknownValues_AreLeftOutAndABucketOfThemIsAGap) {
  const Curve curve = decimated(std::vector<double>{1, NAN, 4, NAN, NAN, INFINITY},
                                std::vector<size_t>{0, 3, 5, 6});
  EXPECT_EQ(curve.mean[0], 2.5);
  EXPECT_EQ(curve.low[0], 1);
  EXPECT_EQ(curve.high[0], 4);
  for (const size_t gap : {1U, 2U}) {
    EXPECT_TRUE(std::isnan(curve.mean[gap]));
    EXPECT_TRUE(std::isnan(curve.low[gap]));
    EXPECT_TRUE(std::isnan(curve.high[gap]));
  }
}

}  // namespace
}  // namespace cleave::curve_test
