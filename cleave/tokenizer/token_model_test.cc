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

/// Tokens over "abc", among them each letter but c, with random scores.
struct Scored {
  std::vector<std::string> tokens{"?", "a", "b"};
  std::vector<double> scores;
};

Scored random_scored(std::mt19937& random) {
  Scored out;
  for (int i = 0; i < 10; ++i) {
    std::string token;
    const size_t length = 2 + random() % 3;
    while (token.size() < length) token.push_back(static_cast<char>('a' + random() % 3));
    if (std::find(out.tokens.begin(), out.tokens.end(), token) == out.tokens.end()) {
      out.tokens.push_back(token);
    }
  }
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    out.scores.push_back(-static_cast<double>(random() % 100));  // whole, so that sums are exact
  }
  return out;
}

/// A split of a text: the sum of the scores, the ids, and the lengths of the parts, the last first.
struct Split {
  double score = 0;
  Ids ids;
  std::vector<size_t> lengths;
};

/// All splits of the text after byte `at`.
std::vector<Split> all_splits(const Scored& model, const std::string& text, size_t at) {
  if (at == text.size()) return {{}};
  std::vector<Split> all;
  const auto add = [&](size_t bytes, int64_t id, double score) {
    for (Split& rest : all_splits(model, text, at + bytes)) {
      rest.ids.insert(rest.ids.begin(), id);
      rest.lengths.push_back(bytes);
      rest.score += score;
      all.push_back(std::move(rest));
    }
  };
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    if (text.compare(at, model.tokens[id].size(), model.tokens[id]) != 0) continue;
    add(model.tokens[id].size(), static_cast<int64_t>(id), model.scores[id]);
  }
  const double lowest = *std::min_element(model.scores.begin(), model.scores.end());
  if (text[at] == 'c') add(1, 0, lowest - 10);
  return all;
}

/// The best of all splits; of equal sums the one with the longest last part, and so on.
Split best_split(const Scored& model, const std::string& text) {
  const std::vector<Split> all = all_splits(model, text, 0);
  return *std::max_element(all.begin(), all.end(), [](const Split& a, const Split& b) {
    return a.score != b.score ? a.score < b.score : a.lengths < b.lengths;
  });
}

// Oracle: all splits.
TEST(Unigram, RandomScores_GiveTheBestOfAllSplits) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const Scored model = random_scored(random);
    const Unigram unigram(Vocab::from_list(model.tokens), model.scores, {.unk = 0});
    std::string text;
    for (size_t i = 0; i < 1 + random() % 10; ++i) {
      text.push_back(static_cast<char>('a' + random() % 3));
    }
    Ids want = best_split(model, text).ids;
    want.erase(std::unique(want.begin(), want.end(),
                           [](int64_t a, int64_t b) { return a == 0 && b == 0; }),
               want.end());  // adjacent unknown letters are one
    Ids ids;
    PieceCache cache;
    unigram.tokenize(text, ids, cache);
    unigram.tokenize(text, ids, cache);  // from the cache
    want.insert(want.end(), want.begin(), want.end());
    EXPECT_EQ(ids, want) << text;
  }
}

/// The ids of a text by a model with these members and the unknown token 0.
Ids unigram_ids(const std::string& members, std::string_view text) {
  const auto unigram =
      Unigram::from_json(Json::parse(R"({"unk_id": 0, )" + members + "}", "tokenizer.json"));
  Ids ids;
  PieceCache cache;
  unigram->tokenize(text, ids, cache);
  return ids;
}

TEST(Unigram, UnknownText_BecomesBytesWhereAllExist) {
  const std::string vocab = R"("vocab": [["<unk>", 0], ["a", -1], ["<0xC3>", -2], ["<0xA9>", -2]])";
  const std::string with_bytes = R"("byte_fallback": true, )" + vocab;
  EXPECT_EQ(unigram_ids(with_bytes, "a\xC3\xA9z"), (Ids{1, 0}));  // one part, and z has no byte
  EXPECT_EQ(unigram_ids(with_bytes, "a\xC3\xA9"), (Ids{1, 2, 3}));
  EXPECT_EQ(unigram_ids(vocab, "a\xC3\xA9"), (Ids{1, 0}));
}

// Oracle: tokenizers.
TEST(Unigram, UnknownCharacter_Costs10MoreThanTheLowestScore) {
  const auto ids = [](const std::string& score_of_d) {
    return unigram_ids(R"("vocab": [["<unk>", 0], ["a", -1], ["abc", -20], ["cd", -1], ["d", )" +
                           score_of_d + "]]",
                       "abcd");
  };
  EXPECT_EQ(ids("-11.5"), (Ids{2, 4}));     // -31.5 against -1 - 30 - 1
  EXPECT_EQ(ids("-12.5"), (Ids{1, 0, 3}));  // -32.5
}

// Oracle: tokenizers.
TEST(Unigram, LastOfEqualTokens_Counts) {
  const std::string begin = R"("vocab": [["<unk>", 0], ["a", -1], ["b", -1], )";
  EXPECT_EQ(unigram_ids(begin + R"(["ab", -9], ["ab", -1]])", "ab"), (Ids{4}));
  EXPECT_EQ(unigram_ids(begin + R"(["ab", -1], ["ab", -9]])", "ab"), (Ids{1, 2}));
}

TEST(Unigram, MalformedModels_AreRefused) {
  const auto refusal = [](const std::string& members) -> std::string {
    return test::thrown_by(
               [&] { Unigram::from_json(Json::parse("{" + members + "}", "tokenizer.json")); })
        .what();
  };
  EXPECT_THAT(refusal(R"("unk_id": 0, "vocab": [])"),
              HasSubstr("array of tokens and their scores"));
  EXPECT_THAT(refusal(R"("unk_id": 0, "vocab": [["a"]])"), HasSubstr("a token and its score"));
  EXPECT_THAT(refusal(R"("unk_id": 1, "vocab": [["a", 0]])"), HasSubstr("unk_id"));
  EXPECT_THAT(refusal(R"("unk_id": null, "vocab": [["a", 0]])"), HasSubstr("expected unk_id"));
}

}  // namespace
}  // namespace cleave::token_model_test
