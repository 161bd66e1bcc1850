#include "cleave/tokenizer/token_model.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::token_model_test {
namespace {

using ::testing::HasSubstr;
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

/// A vocabulary over "abc" with random merges of earlier tokens.
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

/// The definition: merge the leftmost pair with the lowest rank until no pair has a merge.
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

// With lengths below and above the limit for scanning instead of a heap.
TEST(Bpe, RandomMerges_MatchTheDefinition) {
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
    PieceCache cache;
    bpe.tokenize(text, got, cache);
    EXPECT_EQ(got, want) << "round " << round << ": " << text;
    bpe.tokenize(text, got, cache);  // the second time from the cache
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
  PieceCache cache;
  // CPU time, because the machine may be busy. Quadratic work would take minutes.
  const std::clock_t start = std::clock();
  bpe.tokenize(std::string(1 << 18, 'a'), ids, cache);
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

TEST(FlatMap, ManyKeys_AreFoundAndReplaced) {
  FlatMap map;
  EXPECT_EQ(map.find(1), std::nullopt);
  for (uint64_t i = 0; i < 20000; ++i) map.set(i << 32, i);
  for (uint64_t i = 0; i < 20000; ++i) EXPECT_EQ(map.find(i << 32), i);
  EXPECT_EQ(map.find(1), std::nullopt);
  map.set(5ULL << 32, 77);
  EXPECT_EQ(map.find(5ULL << 32), 77U);
  EXPECT_EQ(map.size(), 20000U);
}

TEST(TokenTrie, LongestString_IsFound) {
  TokenTrie trie;
  EXPECT_TRUE(trie.empty());
  trie.add("ab", 1);
  trie.add("abcd", 2);
  trie.add("", 3);
  EXPECT_EQ(trie.longest("abcx")->value, 1);
  EXPECT_EQ(trie.longest("abcx")->length, 2U);
  EXPECT_EQ(trie.longest("abcdx")->value, 2);
  EXPECT_FALSE(trie.longest("a"));
  EXPECT_FALSE(trie.longest("xab"));
  EXPECT_TRUE(trie.begins_with('a'));
  EXPECT_FALSE(trie.begins_with('b'));
}

TEST(Vocab, IdsWithGaps_AreFoundBothWays) {
  const Vocab vocab = Vocab::from_json(Json::parse(R"({"b": 5, "a": 0, "": 2})", "t"));
  EXPECT_EQ(vocab.find("b"), 5);
  EXPECT_EQ(vocab.find(""), 2);
  EXPECT_EQ(vocab.find("c"), std::nullopt);
  EXPECT_EQ(vocab.token(5), "b");
  EXPECT_EQ(vocab.token(1), std::nullopt);
  EXPECT_EQ(vocab.token(-1), std::nullopt);
  EXPECT_EQ(vocab.token(6), std::nullopt);
  EXPECT_EQ(vocab.end_id(), 6);
}

TEST(Vocab, InvalidIds_NameTokenAndByte) {
  const auto error = [](const char* text) {
    return std::string(test::thrown_by([&] { Vocab::from_json(Json::parse(text, "t")); }).what());
  };
  EXPECT_THAT(error(R"({"a": 1, "b": 1})"), HasSubstr("\"b\" is 1; the token \"a\" has the same"));
  EXPECT_THAT(error(R"({"a": -1})"), HasSubstr("\"a\" is -1"));
  EXPECT_THAT(error(R"({"a": 4294967295})"), HasSubstr("expected an integer in [0, 16777215]"));
  EXPECT_THAT(error(R"({"a": "1"})"), HasSubstr("expected an integer"));
  EXPECT_THAT(error("{}"), HasSubstr("expected an object of tokens"));
  EXPECT_THAT(error("[1]"), HasSubstr("expected an object of tokens"));
}

}  // namespace
}  // namespace cleave::token_model_test
