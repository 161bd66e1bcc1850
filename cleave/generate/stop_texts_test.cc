#include "cleave/generate/stop_texts.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::stop_texts_test {
namespace {

std::vector<int64_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

TEST(StopTexts, TextOverSeveralIds_IsFoundAtItsLast) {
  const StopTexts stops({"END", "\n\n"}, byte_tokenizer());
  EXPECT_FALSE(stops.is_in(bytes("x"), bytes("the EN")));
  EXPECT_TRUE(stops.is_in(bytes("x"), bytes("the END")));
  EXPECT_TRUE(stops.is_in(bytes("x"), bytes("a\n\n")));
}

TEST(StopTexts, TextInThePrompt_DoesNotCount) {
  const StopTexts stops({"END"}, byte_tokenizer());
  EXPECT_FALSE(stops.is_in(bytes("END"), bytes("a")));
  EXPECT_FALSE(stops.is_in(bytes("say EN"), bytes("D")));
}

TEST(StopTexts, TextBeforeTheWindow_IsNotFound) {
  const StopTexts stops({"END"}, byte_tokenizer());
  EXPECT_FALSE(stops.is_in(bytes("x"), bytes("END and much more")));
}

TEST(StopTexts, TextOfMultiByteCharacters_IsFound) {
  const std::string text = "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9";
  std::vector<int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  const StopTexts stops({"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"}, byte_tokenizer());
  EXPECT_TRUE(stops.is_in(bytes("x"), ids));
  ids.pop_back();
  EXPECT_FALSE(stops.is_in(bytes("x"), ids));
}

TEST(StopTexts, NoTokenizerOrEmptyText_IsRefused) {
  EXPECT_EQ(test::thrown_by([] { StopTexts({"a"}, nullptr); }).code(), Code::kUsage);
  EXPECT_EQ(test::thrown_by([] { StopTexts({""}, byte_tokenizer()); }).code(), Code::kUsage);
}

}  // namespace
}  // namespace cleave::stop_texts_test
