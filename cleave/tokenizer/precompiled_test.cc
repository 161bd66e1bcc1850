#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/tokenizer/steps.h"
#include "tests/support/thrown.h"

namespace cleave::precompiled_test {
namespace {

using ::testing::HasSubstr;

/// RFC 4648.
std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      const bool exists = at + i < bytes.size();
      bits = (bits << 8) | (exists ? static_cast<uint8_t>(bytes[at + i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      const bool is_digit = at + i < bytes.size() + 1;
      out.push_back(is_digit ? kDigits[(bits >> (18 - 6 * i)) & 63] : '=');
    }
  }
  return out;
}

std::string table(uint32_t trie_bytes, const std::vector<uint32_t>& units, std::string_view texts) {
  std::string out(sizeof(trie_bytes) + units.size() * sizeof(uint32_t), '\0');
  std::memcpy(out.data(), &trie_bytes, sizeof(trie_bytes));
  std::memcpy(out.data() + sizeof(trie_bytes), units.data(), units.size() * sizeof(uint32_t));
  return out + std::string(texts);
}

std::unique_ptr<Normalizer> normalizer_of(std::string_view bytes) {
  return read_normalizer(
      Json::parse(R"({"type": "Precompiled", "precompiled_charsmap": ")" + base64(bytes) + "\"}",
                  "tokenizer.json"));
}

// A trie for "a": the unit of the root has offset 1, so that of "a" is at 1 ^ 'a' = 96; its offset
// 1 leads to the value at 96 ^ 1 = 97.
std::vector<uint32_t> units_for_a() {
  std::vector<uint32_t> units(98, 0);
  units[0] = 1U << 10;
  units[96] = 'a' | 1U << 8 | 1U << 10;
  units[97] = 1U << 31 | 2;
  return units;
}

// Oracle: the rules of `tokenizers`: a short cluster is replaced as a whole.
TEST(Precompiled, Table_ReplacesCharactersAndClusters) {
  const auto normalizer = normalizer_of(table(98 * 4, units_for_a(), std::string("x\0yz\0w", 6)));
  EXPECT_EQ(normalizer->normalize("banana"), "byznyznyz");
  EXPECT_EQ(normalizer->normalize("a\xCC\x81!"), "yz!");          // 3 bytes
  EXPECT_EQ(normalizer->normalize("a\xCC\x81\xCC\x81!"), "yz!");  // 5 bytes
  EXPECT_EQ(normalizer->normalize("a\xCC\x81\xE2\x83\x90!"),
            "yz\xCC\x81\xE2\x83\x90!");  // 6: by character
  const std::string accents = "\xCC\x81\xCC\x81\xCC\x81";
  EXPECT_EQ(normalizer->normalize("a" + accents), "yz" + accents);  // 7 bytes: by character
  EXPECT_EQ(normalizer->normalize("\xFFz"), "\xEF\xBF\xBDz");
  EXPECT_EQ(normalizer->normalize(std::string("\0a", 2)), std::string("\0yz", 3));
}

TEST(Precompiled, MalformedTables_AreRefused) {
  const auto refusal = [](std::string_view bytes) -> std::string {
    return test::thrown_by([&] { normalizer_of(bytes); }).what();
  };
  const char* const want = "expected the size of a trie";
  EXPECT_THAT(refusal("abc"), HasSubstr(want));
  EXPECT_THAT(refusal(table(0, {}, "")), HasSubstr(want));
  EXPECT_THAT(refusal(table(3, {0}, "")), HasSubstr(want));
  EXPECT_THAT(refusal(table(8, {0}, "")), HasSubstr(want));
  EXPECT_THAT(test::thrown_by([] {
                read_normalizer(Json::parse(
                    R"({"type": "Precompiled", "precompiled_charsmap": "%"})", "tokenizer.json"));
              }).what(),
              HasSubstr("base64"));
}

// Units that lead out of the table, or to no replacement, replace nothing.
TEST(Precompiled, RandomTables_AreReadWithoutFault) {
  std::mt19937 random(1);
  const std::string text = "abc\xC3\xA9 \xE4\xBD\xA0 a\xCC\x81 \r\n\xF0\x9F\x98\x80";
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint32_t> units(1 + random() % 300);
    for (uint32_t& unit : units) unit = static_cast<uint32_t>(random());
    units[0] = static_cast<uint32_t>(random() % 300) << 10;
    for (size_t i = 1; i < units.size(); ++i) {
      if (random() % 2 == 0) units[i] = (units[i] & 0x7FFF00) | (i & 0xFF);
    }
    const auto size = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
    const auto normalizer = normalizer_of(table(size, units, "some text"));
    EXPECT_LE(normalizer->normalize(text).size(), text.size() * 9);
  }
}

}  // namespace
}  // namespace cleave::precompiled_test
