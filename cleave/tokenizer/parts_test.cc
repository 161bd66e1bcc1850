#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/tokenizer/base64.h"
#include "cleave/tokenizer/flat_map.h"
#include "cleave/tokenizer/regex.h"
#include "cleave/tokenizer/token_trie.h"
#include "cleave/tokenizer/unicode.h"
#include "cleave/tokenizer/vocab.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Base64, TestVectorsOfRfc4648_Decode) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("Zg=="), "f");
  EXPECT_EQ(decode_base64("Zm8="), "fo");
  EXPECT_EQ(decode_base64("Zm9v"), "foo");
  EXPECT_EQ(decode_base64("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decode_base64("+/8="), "\xFB\xFF");
  for (const char* bad :
       {"Z", "Zg", "Zg=", "Z===", "Zh==", "Zm9=", "Zm9v!A==", "Zg==Zg==", "Z g="}) {
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
  }
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

TEST(TokenTrie, LongestString_Wins) {
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

TEST(Vocab, IdsWithGaps_GoBothWays) {
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

TEST(Vocab, WrongIds_NameTokenAndByte) {
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

std::vector<std::string> matches(const char* pattern, const std::string& text) {
  std::vector<std::string> out;
  Regex(pattern).for_each(
      text, [&](size_t begin, size_t end) { out.push_back(text.substr(begin, end - begin)); });
  return out;
}

TEST(Regex, Classes_AreUnicodes) {
  EXPECT_THAT(matches(R"(\s)", "a\xC2\xA0 \xE1\xA0\x8E"), ElementsAre("\xC2\xA0", " "));
  EXPECT_THAT(matches(R"([^\s]+)", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches(R"(\S+)", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches(R"(\w+)", "e\xCC\x81-x_1"), ElementsAre("e\xCC\x81", "x_1"));
  EXPECT_THAT(matches(R"(\W+)", "a -b"), ElementsAre(" -"));
  EXPECT_THAT(matches(R"(\\s)", "a\\s"), ElementsAre("\\s"));
}

TEST(Regex, EmptyMatchesAndBadBytes_ArePassedOver) {
  EXPECT_THAT(matches("x*", "axxb"), ElementsAre("xx"));
  EXPECT_THAT(matches("$|^", "a\nb"), ElementsAre());
  EXPECT_THAT(matches("[a-z]+",
                      "ab\xFF"
                      "cd\xE2\x82"),
              ElementsAre("ab", "cd"));
  EXPECT_THAT(matches("(?=ab)", "abab"), ElementsAre());
}

TEST(Regex, PatternThatNeedsTooManySteps_StopsSoon) {
  EXPECT_THAT(matches("(a+)+$", std::string(40, 'a') + "b"), ElementsAre());
}

TEST(Regex, WrongPattern_SaysWhy) {
  const Error error = test::thrown_by([] { Regex("(a"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("parenthesis"));
  EXPECT_THROW(Regex("\\C"), Error);
}

TEST(Unicode, LowerCase_IsOfEachCharacterAlone) {
  const auto lower = [](char32_t c) {
    std::string out;
    append_lower(out, c);
    return out;
  };
  EXPECT_EQ(lower('Q'), "q");
  EXPECT_EQ(lower('1'), "1");
  EXPECT_EQ(lower(0xC9), "\xC3\xA9");
  EXPECT_EQ(lower(0x130), "i\xCC\x87");  // a capital I with a dot becomes two characters
  EXPECT_EQ(lower(0x3A3), "\xCF\x83");   // sigma, not the final form
  EXPECT_EQ(lower(0x10400), "\xF0\x90\x90\xA8");
}

}  // namespace
}  // namespace cleave
