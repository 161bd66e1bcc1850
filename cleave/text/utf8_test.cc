#include "cleave/text/utf8.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace cleave::utf8_test {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

// Oracle: bytes(...).decode("utf-8", errors="replace") of CPython.
TEST(Utf8, MalformedBytes_BecomeOneReplacementForEachMaximalPart) {
  const std::array<std::pair<std::string, std::string>, 12> cases{{
      {"plain", "plain"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"a\x80z", "a" + kBad + "z"},
      {"\xC0\x80", kBad + kBad},
      {"\xE2\x82z", kBad + "z"},
      {"\xE2\x82", kBad},
      {"\xF0\x9F\x98", kBad},
      {"\xF0\x9F\x98\xC3\xA9", kBad + "\xC3\xA9"},
      {"\xED\xA0\x80", kBad + kBad + kBad},
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},
      {"\xE0\x80\x80", kBad + kBad + kBad},
      {"\xFF\xFE", kBad + kBad},
  }};
  for (const auto& [bytes, want] : cases) EXPECT_EQ(replace_bad_utf8(bytes), want) << want;
}

TEST(Utf8, EveryScalarValue_SurvivesEncodingAndDecoding) {
  for (char32_t value = 0; value <= 0x10FFFF; ++value) {
    if (value == 0xD800) value = 0xE000;
    std::string bytes;
    append_utf8(bytes, value);
    const CodePoint point = next_code_point(bytes, 0);
    ASSERT_TRUE(point.valid) << static_cast<uint32_t>(value);
    ASSERT_EQ(point.value, value);
    ASSERT_EQ(point.bytes, bytes.size());
    ASSERT_EQ(unfinished_utf8_tail(bytes), 0U);
    ASSERT_EQ(unfinished_utf8_tail(bytes.substr(0, bytes.size() - 1)), bytes.size() - 1);
  }
}

TEST(Utf8, FirstBadByte_IsFound) {
  EXPECT_EQ(first_bad_utf8("abc"), 3U);
  EXPECT_EQ(first_bad_utf8("ab\xC3"), 2U);
  EXPECT_EQ(first_bad_utf8("\xC3\xA9\xED\xBF\xBF"), 2U);
}

TEST(Utf8, TailThatCannotBecomeACharacter_IsNotCounted) {
  EXPECT_EQ(unfinished_utf8_tail("a\xED\xA0"), 0U);
  EXPECT_EQ(unfinished_utf8_tail("a\xFF"), 0U);
  EXPECT_EQ(unfinished_utf8_tail("\x80\x80\x80\x80"), 0U);
  EXPECT_EQ(unfinished_utf8_tail(""), 0U);
  EXPECT_EQ(unfinished_utf8_tail("\xF0\x9F"), 2U);
}

TEST(Utf8, EndOfText_TakesNoBytes) {
  EXPECT_EQ(next_code_point("a", 1).bytes, 0U);
  EXPECT_EQ(next_code_point("", 7).bytes, 0U);
}

}  // namespace
}  // namespace cleave::utf8_test
