#include "cleave/tokenizer/unicode.h"

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/text/json.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/regex.h"
#include "cleave/tokenizer/steps.h"
#include "tests/support/paths.h"
#include "tests/support/thrown.h"

// Oracle: checksums of the results of tokenizers 0.23.3 for every character, made by
// tools/make_unicode_tables.py.
namespace cleave::unicode_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char32_t kEnd = 0x110000;

bool is_surrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

/// CRC-32 as in zlib.
int64_t crc_of(const std::string& text) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : text) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return static_cast<int64_t>(~crc);
}

std::string hex(char32_t c) {
  std::array<char, 16> digits{};
  std::snprintf(digits.data(), digits.size(), "%x", static_cast<unsigned>(c));
  return digits.data();
}

std::string utf8(char32_t c) {
  std::string text;
  append_utf8(text, c);
  return text;
}

/// Checksum of the ranges of the characters for which `is_in` is true.
int64_t set_checksum(const std::function<bool(char32_t)>& is_in) {
  std::string text;
  for (char32_t c = 0; c < kEnd;) {
    if (is_surrogate(c) || !is_in(c)) {
      ++c;
      continue;
    }
    const char32_t first = c;
    while (c < kEnd && !is_surrogate(c) && is_in(c)) ++c;
    text += hex(first) + "-" + hex(c - 1) + " ";
  }
  return crc_of(text);
}

/// Checksum of the characters that `change` changes, and their new texts.
int64_t map_checksum(const std::function<std::string(const std::string&)>& change) {
  std::string text;
  for (char32_t c = 0; c < kEnd; ++c) {
    if (is_surrogate(c)) continue;
    const std::string before = utf8(c);
    const std::string after = change(before);
    if (after != before) text += hex(c) + " " + after + "\n";
  }
  return crc_of(text);
}

/// Checksum of the characters that the pattern matches in a text of all characters.
int64_t matched_checksum(const std::string& pattern) {
  std::string all;
  for (char32_t c = 0; c < kEnd; ++c) {
    if (!is_surrogate(c)) append_utf8(all, c);
  }
  std::vector<bool> is_matched(kEnd, false);
  Regex(pattern).for_each(all, [&](size_t begin, size_t /*end*/) {
    is_matched[next_code_point(all, begin).value] = true;
  });
  return set_checksum([&](char32_t c) { return is_matched[c]; });
}

class UnicodeGolden : public ::testing::Test {
 protected:
  [[nodiscard]] int64_t want(const std::string& name) const { return sums_.at(name).as_int(); }

  Json sums_ =
      Json::parse_file(test::source_file("tests/golden/tokenizer/unicode.json")).at("checksums");
};

TEST_F(UnicodeGolden, ClassesOfEveryCharacter_MatchTokenizers) {
  EXPECT_EQ(set_checksum(is_white_space), want("white space"));
  EXPECT_EQ(set_checksum(is_punctuation), want("punctuation"));
  EXPECT_EQ(set_checksum(is_number), want("number"));
  EXPECT_EQ(set_checksum(is_word_character), want("word"));
  EXPECT_EQ(set_checksum(is_control_or_format), want("dropped"));
  EXPECT_EQ(set_checksum(is_mark), want("mark"));
  EXPECT_EQ(set_checksum(is_chinese_character), want("chinese"));
}

TEST_F(UnicodeGolden, ClustersOfEveryCharacter_MatchTokenizers) {
  const auto is_one = [](std::string_view text) { return cluster_end(text, 0) == text.size(); };
  const std::string accent = utf8(0x301);
  EXPECT_EQ(set_checksum([&](char32_t c) { return is_one("a" + utf8(c)); }), want("joined"));
  EXPECT_EQ(set_checksum([&](char32_t c) {
              return !is_one("a" + utf8(c)) && is_one(utf8(c) + "a" + accent);
            }),
            want("joining"));
  EXPECT_EQ(
      set_checksum([&](char32_t c) { return !is_one("a" + utf8(c)) && !is_one(utf8(c) + accent); }),
      want("alone"));
  EXPECT_TRUE(is_one("\r\n"));
  EXPECT_FALSE(is_one("\n\r"));
}

TEST_F(UnicodeGolden, ClassesOfRegularExpressions_MatchTokenizers) {
  for (const char* name :
       {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "Nl", "No", "P", "S", "Z"}) {
    const std::string pattern = std::string("\\p{") + name + "}";
    EXPECT_EQ(matched_checksum(pattern), want(pattern)) << pattern;
  }
  for (const char* pattern : {"\\s", "\\w", "\\d"}) {
    EXPECT_EQ(matched_checksum(pattern), want(pattern)) << pattern;
    EXPECT_EQ(matched_checksum(std::string("[") + pattern + "]"), want(pattern)) << pattern;
  }
  EXPECT_EQ(matched_checksum("[^\\P{L}]"), want("\\p{L}"));
}

TEST_F(UnicodeGolden, FormsOfEveryCharacter_MatchTokenizers) {
  const auto bert = make_bert_normalizer(
      {.clean_text = false, .chinese_chars = false, .strip_accents = true, .lowercase = false});
  EXPECT_EQ(map_checksum([&](const std::string& c) { return bert->normalize(c); }),
            want("accents"));
  EXPECT_EQ(map_checksum([](const std::string& c) {
              std::string out;
              append_lower(out, next_code_point(c, 0).value);
              return out;
            }),
            want("lower"));
  const auto form = [&](NormalForm f) {
    return map_checksum([f](const std::string& c) { return to_normal_form(c, f); });
  };
  EXPECT_EQ(form(NormalForm::kNfc), want("NFC"));
  EXPECT_EQ(form(NormalForm::kNfd), want("NFD"));
  EXPECT_EQ(form(NormalForm::kNfkc), want("NFKC"));
  EXPECT_EQ(form(NormalForm::kNfkd), want("NFKD"));
}

std::vector<std::string> matches(const char* pattern, const std::string& text) {
  std::vector<std::string> out;
  Regex(pattern).for_each(
      text, [&](size_t begin, size_t end) { out.push_back(text.substr(begin, end - begin)); });
  return out;
}

// Llama 3's alternatives for white space, after which the words must still be found.
TEST(Regex, LongRunOfBlanks_IsMatchedLikeAShortOne) {
  const char* pattern = R"(\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+)";
  for (const size_t length : {size_t{3}, size_t{3'000'000}}) {
    const std::string blanks(length, ' ');
    EXPECT_EQ(matches(pattern, "a" + blanks + "b 12345"),
              (std::vector<std::string>{"a", blanks.substr(1), " ", "b", " ", "123", "45"}))
        << length;
  }
}

TEST(Regex, Classes_FollowUnicode) {
  EXPECT_THAT(matches(R"(\s)", "a\xC2\xA0 \xE1\xA0\x8E"), ElementsAre("\xC2\xA0", " "));
  EXPECT_THAT(matches(R"([^\s]+)", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches(R"(\S+)", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches(R"(\w+)", "e\xCC\x81-x_1"), ElementsAre("e\xCC\x81", "x_1"));
  EXPECT_THAT(matches(R"(\W+)", "a -b"), ElementsAre(" -"));
  EXPECT_THAT(matches(R"(\\s)", "a\\s"), ElementsAre("\\s"));
}

TEST(Regex, EmptyMatchesAndBadBytes_AreSkipped) {
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

TEST(Regex, InvalidPattern_GivesTheReason) {
  const Error error = test::thrown_by([] { Regex("(a"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("parenthesis"));
  EXPECT_THROW(Regex("\\C"), Error);
}

TEST(Unicode, LowerCase_IgnoresTheContext) {
  const auto lower = [](char32_t c) {
    std::string out;
    append_lower(out, c);
    return out;
  };
  EXPECT_EQ(lower('Q'), "q");
  EXPECT_EQ(lower('1'), "1");
  EXPECT_EQ(lower(0xC9), "\xC3\xA9");
  EXPECT_EQ(lower(0x130), "i\xCC\x87");  // capital I with a dot becomes two characters
  EXPECT_EQ(lower(0x3A3), "\xCF\x83");   // sigma, not final sigma
  EXPECT_EQ(lower(0x10400), "\xF0\x90\x90\xA8");
}

}  // namespace
}  // namespace cleave::unicode_test
