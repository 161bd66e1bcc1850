#include "cleave/data/mix.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "cleave/data/order.h"
#include "tests/support/thrown.h"

namespace cleave::mix_test {
namespace {

/// `count` samples of one id each: first_id, first_id + 1, ...
class Numbers final : public Dataset {
 public:
  Numbers(int64_t first_id, int64_t count, bool is_text = false)
      : first_id_(first_id), count_(count), is_text_(is_text) {}
  [[nodiscard]] int64_t size() const override { return count_; }
  [[nodiscard]] Sample sample(int64_t index) const override {
    Sample sample;
    sample.ids = {first_id_ + index};
    return sample;
  }
  [[nodiscard]] bool is_text() const override { return is_text_; }
  [[nodiscard]] uint64_t fingerprint() const override { return static_cast<uint64_t>(first_id_); }

 private:
  int64_t first_id_, count_;
  bool is_text_;
};

WeightedData source(const std::string& name, int64_t first_id, int64_t count, double weight) {
  return {.name = name, .data = std::make_shared<Numbers>(first_id, count), .weight = weight};
}

// The bounds follow from the rule: a source is drawn only while it is behind its share. The shares
// are rounded to 1 / 65536, by less than one of these.
TEST(DataMix, EveryPrefixOfTheDraws_IsInProportion) {
  for (const std::vector<double>& weights :
       {std::vector<double>{0.7, 0.3}, {1, 1}, {5, 3, 2}, {1, 10, 100, 1000}, {2}}) {
    std::vector<WeightedData> sources;
    double sum = 0;
    for (const double weight : weights) {
      sources.push_back(source("s", 0, 5, weight));
      sum += weight;
    }
    const DataMix mix(sources);
    std::vector<double> drawn(weights.size(), 0);
    for (int64_t n = 0; n < 140000; ++n) {
      const DataMix::Draw draw = mix.draw(n);
      const auto s = static_cast<size_t>(draw.source);
      ASSERT_EQ(static_cast<double>(draw.number), drawn[s]) << n;
      drawn[s] += 1;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double ahead = drawn[i] - weights[i] / sum * static_cast<double>(n + 1);
        const double rounding = static_cast<double>(n + 1) / 65536;
        ASSERT_LT(ahead, 1 + rounding) << n;
        ASSERT_GT(ahead, -static_cast<double>(weights.size() - 1) - rounding) << n;
      }
    }
  }
}

TEST(DataMix, ExhaustedSource_StartsOverInANewOrderWithoutSkippingAny) {
  const std::vector<WeightedData> sources = {source("a", 0, 10, 3), source("b", 100, 1000, 1)};
  const auto data = joined_dataset(sources);
  ASSERT_EQ(data->size(), 1010);
  const SampleOrder order{.num_samples = data->size(),
                          .batch_size = 4,
                          .seed = 7,
                          .mix = std::make_shared<DataMix>(sources)};
  std::vector<int64_t> of_a;
  std::set<int64_t> of_b;
  for (int64_t step = 0; step < 40; ++step) {
    int64_t num_a = 0;
    for (int64_t place = 0; place < 4; ++place) {
      const int64_t id = data->sample(order.at(step, place)).ids.front();
      if (id < 100) {
        of_a.push_back(id);
        ++num_a;
      } else {
        of_b.insert(id);
      }
    }
    EXPECT_EQ(num_a, 3) << step;  // of every four draws
  }
  EXPECT_EQ(of_b.size(), 40U);  // none twice
  ASSERT_EQ(of_a.size(), 120U);
  std::set<std::vector<int64_t>> passes;
  for (auto at = of_a.begin(); at != of_a.end(); at += 10) {
    EXPECT_EQ(std::set<int64_t>(at, at + 10).size(), 10U);  // each once
    passes.insert(std::vector<int64_t>(at, at + 10));
  }
  EXPECT_GT(passes.size(), 10U);  // the orders differ
}

TEST(DataMix, WithoutShuffle_SourcesAreReadInFileOrder) {
  const std::vector<WeightedData> sources = {source("a", 0, 3, 1), source("b", 100, 2, 1)};
  const auto data = joined_dataset(sources);
  const SampleOrder order{.num_samples = 5,
                          .batch_size = 2,
                          .shuffle = false,
                          .mix = std::make_shared<DataMix>(sources)};
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < 8; ++n) ids.push_back(data->sample(order.at(n / 2, n % 2)).ids.front());
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 100, 1, 101, 2, 100, 0, 101}));
}

TEST(JoinedDataset, Fingerprint_ChangesWithTheWeightsAndTheData) {
  const auto fingerprint = [](double weight, int64_t first_id) {
    return joined_dataset({source("a", 0, 3, 1), source("b", first_id, 2, weight)})->fingerprint();
  };
  EXPECT_EQ(fingerprint(1, 5), fingerprint(1, 5));
  EXPECT_NE(fingerprint(1, 5), fingerprint(2, 5));
  EXPECT_NE(fingerprint(1, 5), fingerprint(1, 6));
}

TEST(DataMix, TinyShareAndTwoKinds_AreRefusedByName) {
  EXPECT_STREQ(test::thrown_by([] {
                 DataMix({source("a", 0, 3, 1e6), source("b.jsonl", 9, 3, 1)});
               }).what(),
               "b.jsonl: the weight is 1 of a sum of 1e+06; expected at least 1/65536 of the sum");
  const WeightedData text{.name = "t", .data = std::make_shared<Numbers>(0, 2, true)};
  EXPECT_STREQ(test::thrown_by([&] {
                 (void)joined_dataset({text, source("b", 0, 3, 1)});
               }).what(),
               "b holds ids, t text; all data files must be of one kind");
}

}  // namespace
}  // namespace cleave::mix_test
