#include "cleave/tokenizer/bpe.h"

#include <ctime>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave {
namespace {

using Ids = std::vector<int64_t>;
using Merge = std::pair<std::string, std::string>;

struct Example {
  std::vector<std::string> tokens;
  std::vector<Merge> merges;

  [[nodiscard]] Bpe make() const {
    Bpe bpe(Vocab::from_list(tokens), {});
    for (size_t i = 0; i < merges.size(); ++i) {
      EXPECT_TRUE(bpe.add_merge(merges[i].first, merges[i].second, static_cast<uint32_t>(i)));
    }
    return bpe;
  }
};

/// A vocabulary over "abc" with random merges, each of two tokens known before.
Example random_example(std::mt19937& random) {
  Example example{.tokens = {"a", "b", "c"}, .merges = {}};
  for (int i = 0; i < 12; ++i) {
    const std::string& left = example.tokens[random() % example.tokens.size()];
    const std::string& right = example.tokens[random() % example.tokens.size()];
    const Merge merge{left, right};
    const std::string joined = left + right;
    const auto known = std::find(example.tokens.begin(), example.tokens.end(), joined);
    if (std::find(example.merges.begin(), example.merges.end(), merge) != example.merges.end()) {
      continue;
    }
    example.merges.push_back(merge);
    if (known == example.tokens.end()) example.tokens.push_back(joined);
  }
  return example;
}

/// The definition, word for word: merge the leftmost pair of the lowest rank until none is left.
std::vector<std::string> slow_merge(const std::string& text, const std::vector<Merge>& merges) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < symbols.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank] == Merge{symbols[at], symbols[at + 1]}) {
          best_rank = rank;
          best_at = at;
        }
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

// Lengths on both sides of the change from scanning to the heap.
TEST(Bpe, RandomMerges_GiveWhatTheDefinitionGives) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Example example = random_example(random);
    const Bpe bpe = example.make();
    std::string text;
    const size_t length = random() % 80;
    for (size_t i = 0; i < length; ++i) text.push_back("abc"[random() % 3]);
    Ids want;
    for (const std::string& symbol : slow_merge(text, example.merges)) {
      want.push_back(*bpe.vocab().find(symbol));
    }
    Ids got;
    ModelScratch scratch;
    bpe.tokenize(text, got, scratch);
    EXPECT_EQ(got, want) << "round " << round << ": " << text;
    bpe.tokenize(text, got, scratch);  // the second time from memory
    EXPECT_EQ(got.size(), 2 * want.size());
  }
}

TEST(Bpe, LongPiece_TakesAboutLinearTime) {
  Example example{.tokens = {"a"}, .merges = {}};
  while (example.tokens.back().size() < 4096) {
    const std::string last = example.tokens.back();
    example.merges.emplace_back(last, last);
    example.tokens.push_back(last + last);
  }
  const Bpe bpe = example.make();
  Ids ids;
  ModelScratch scratch;
  // Processor time: a busy machine is no reason to fail. Quadratic work would take minutes.
  const std::clock_t start = std::clock();
  bpe.tokenize(std::string(1 << 18, 'a'), ids, scratch);
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
  EXPECT_EQ(ids, Ids(64, 12));
}

TEST(Bpe, MergeOfUnknownTokens_IsNotAdded) {
  Bpe bpe(Vocab::from_list({"a", "b", "ab"}), {});
  EXPECT_TRUE(bpe.add_merge("a", "b", 0));
  EXPECT_FALSE(bpe.add_merge("a", "c", 1));
  EXPECT_FALSE(bpe.add_merge("c", "a", 1));
  EXPECT_FALSE(bpe.add_merge("b", "a", 1));
}

}  // namespace
}  // namespace cleave
