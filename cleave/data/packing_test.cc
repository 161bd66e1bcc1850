#include "cleave/data/packing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/list_dataset.h"
#include "tests/support/thrown.h"

namespace cleave::packing_test {
namespace {

using test::ListDataset;

using Ids = std::vector<int64_t>;

Sample text(Ids ids, Ids labels = {}) {
  Sample sample;
  sample.ids = std::move(ids);
  sample.labels = std::move(labels);
  return sample;
}

/// Text k has lengths[k] tokens with id k.
std::shared_ptr<const Dataset> texts_of(const std::vector<size_t>& lengths) {
  std::vector<Sample> samples;
  for (size_t k = 0; k < lengths.size(); ++k) {
    samples.push_back(text(Ids(lengths[k], static_cast<int64_t>(k))));
  }
  return std::make_shared<ListDataset>(std::move(samples));
}

/// Which texts each sequence has.
std::vector<Ids> members_of(const Dataset& data) {
  std::vector<Ids> out;
  for (int64_t i = 0; i < data.size(); ++i) {
    Ids ids = data.sample(i).ids;
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    out.push_back(ids);
  }
  return out;
}

TEST(Packing, Texts_GoIntoTheFullestSequenceWithRoom) {
  const auto data =
      packed_samples(texts_of({6, 5, 3, 4, 9, 10, 2, 12}), {.seq_len = 10, .shuffle = false});
  // 6 and 5 do not fit together; 3 fits into both and goes to 6; 4 goes to 5; 9 and 10 are alone;
  // 2 no longer fits to 6 + 3 and begins a sequence; 12 is longer than any sequence.
  EXPECT_EQ(members_of(*data), (std::vector<Ids>{{0, 2}, {1, 3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(data->sample(5).ids.size(), 12U);
}

TEST(Packing, Sequences_HaveRestartedPositionsAndNoLabelAcrossTexts) {
  std::vector<Sample> samples = {text({1, 2, 3}, {-100, 2, 3}), text({4, 5}),
                                 text({6, 7}, {6, -100}), text({8})};
  samples[1].attention_mask = {0, 1};
  const auto data =
      packed_samples(std::make_shared<ListDataset>(samples), {.seq_len = 7, .shuffle = false});
  ASSERT_EQ(data->size(), 2);
  const Sample first = data->sample(0);
  EXPECT_EQ(first.ids, (Ids{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(first.labels, (Ids{-100, 2, 3, -100, 5, -100, -100}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 0, 1, 0, 1}));
  EXPECT_EQ(first.attention_mask, (Ids{1, 1, 1, 0, 1, 1, 1}));
  EXPECT_TRUE(first.token_types.empty());
  EXPECT_EQ(data->sample(1).ids, (Ids{8}));
  EXPECT_TRUE(data->sample(1).positions.empty());  // one text: as without packing
  EXPECT_TRUE(data->is_text());
  EXPECT_EQ(test::thrown_by([&] { (void)data->sample(2); }).code(), Code::kUsage);
}

/// 500 texts of 1 to 40 tokens.
std::shared_ptr<const Dataset> many_texts() {
  std::vector<size_t> lengths;
  for (size_t k = 0; k < 500; ++k) lengths.push_back(1 + k * k * 7919 % 40);
  return texts_of(lengths);
}

TEST(Packing, EveryText_IsInOneSequenceThatHasRoom) {
  const auto texts = many_texts();
  for (const bool shuffle : {false, true}) {
    const auto data = packed_samples(texts, {.seq_len = 64, .shuffle = shuffle, .seed = 3});
    Ids seen;
    int num_half_empty = 0;
    for (int64_t i = 0; i < data->size(); ++i) {
      const size_t length = data->sample(i).ids.size();
      EXPECT_LE(length, 64U);
      num_half_empty += length <= 32 ? 1 : 0;
    }
    EXPECT_LE(num_half_empty, 1);  // the texts of a second one would have fitted into the first
    for (const Ids& members : members_of(*data)) {
      seen.insert(seen.end(), members.begin(), members.end());
    }
    std::sort(seen.begin(), seen.end());
    Ids all(500);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
    const Utilization before = utilization_of(*texts);
    const Utilization after = utilization_of(*data);
    EXPECT_EQ(after.texts, 500);
    EXPECT_EQ(after.tokens, before.tokens);
  }
}

/// Notes which samples are read.
class WatchedDataset final : public Dataset {
 public:
  explicit WatchedDataset(std::shared_ptr<const Dataset> data) : data_(std::move(data)) {}
  [[nodiscard]] int64_t size() const override { return data_->size(); }
  [[nodiscard]] bool is_text() const override { return true; }
  [[nodiscard]] Sample sample(int64_t index) const override {
    read_.push_back(index);
    return data_->sample(index);
  }
  [[nodiscard]] uint64_t fingerprint() const override { return data_->fingerprint(); }
  [[nodiscard]] Ids take_read() const { return std::exchange(read_, {}); }

 private:
  std::shared_ptr<const Dataset> data_;
  mutable Ids read_;
};

// Data may be larger than the memory: it is read once, in its order, to learn the lengths.
TEST(Packing, Texts_AreReadOnceInTheirOrder) {
  const auto texts = std::make_shared<WatchedDataset>(many_texts());
  const auto data = packed_samples(texts, {.seq_len = 64, .seed = 3});
  Ids all(500);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(texts->take_read(), all);
  const Utilization found = utilization_of(*data);
  EXPECT_EQ(texts->take_read(), Ids{});
  Utilization want{.sequences = data->size()};
  for (int64_t i = 0; i < data->size(); ++i) {
    const Sample sample = data->sample(i);
    want.texts += std::max<int64_t>(
        1, std::count(sample.positions.begin(), sample.positions.end(), int64_t{0}));
    want.tokens += std::ssize(sample.ids);
    want.longest = std::max(want.longest, std::ssize(sample.ids));
  }
  EXPECT_EQ(found.texts, want.texts);
  EXPECT_EQ(found.sequences, want.sequences);
  EXPECT_EQ(found.tokens, want.tokens);
  EXPECT_EQ(found.longest, want.longest);
}

TEST(Packing, Sequences_DependOnSeedAndLengthAlone) {
  const auto texts = many_texts();
  const auto packed = [&](int64_t seq_len, bool shuffle, uint64_t seed) {
    return packed_samples(texts, {.seq_len = seq_len, .shuffle = shuffle, .seed = seed});
  };
  const auto data = packed(64, true, 3);
  EXPECT_EQ(members_of(*data), members_of(*packed(64, true, 3)));
  EXPECT_EQ(data->fingerprint(), packed(64, true, 3)->fingerprint());
  for (const auto& other : {packed(65, true, 3), packed(64, false, 3), packed(64, true, 4)}) {
    EXPECT_NE(members_of(*data), members_of(*other));
    EXPECT_NE(data->fingerprint(), other->fingerprint());
  }
  EXPECT_EQ(members_of(*packed(64, false, 3)), members_of(*packed(64, false, 4)));
}

TEST(Utilization, CountsTextsTokensAndPadding) {
  const auto texts = texts_of({6, 5, 3, 4});
  EXPECT_EQ(utilization_of(*texts).text(),
            "at most 25 % of tokens: 4 texts in 4 sequences of up to 6");
  EXPECT_EQ(utilization_of(*packed_samples(texts, {.seq_len = 9, .shuffle = false})).text(),
            "at most 0 % of tokens: 4 texts in 2 sequences of up to 9");
  EXPECT_EQ(utilization_of(*texts_of({5})).text(),
            "at most 0 % of tokens: 1 text in 1 sequence of up to 5");
}

}  // namespace
}  // namespace cleave::packing_test
