#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/byte_map.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/temp_folder.h"

namespace cleave {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int64_t>;

std::string all_bytes() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  return bytes;
}

TEST(ByteTokenizer, Bytes_AreTheirOwnIds) {
  const auto tokenizer = byte_tokenizer();
  Ids want(256);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(tokenizer->encode(all_bytes()), want);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->special().eos, 256);
  EXPECT_EQ(tokenizer->kind(), "bytes");
}

TEST(ByteTokenizer, EndToken_IsOneIdUnlessParsingIsOff) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_THAT(tokenizer->encode("a<|endoftext|>b"), ElementsAre('a', 256, 'b'));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>", {.parse_special = false}).size(), 13U);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 256, 'b'}), "a<|endoftext|>b");
  EXPECT_EQ(tokenizer->decode(Ids{'a', 256, 'b'}, true), "ab");
  EXPECT_EQ(tokenizer->decode(Ids{'a', -1, 257, 1000000, 'b'}), "ab");
}

TEST(ByteTokenizer, DecodedBytes_AreValidUtf8) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->decode(Ids{0xC3, 0xA9, 0xC3}), "\xC3\xA9\xEF\xBF\xBD");
}

// The files are the same tokenizer in the general form, on every byte and around special tokens.
TEST(ByteTokenizer, WrittenFiles_LoadAsTheSameTokenizer) {
  const test::TempFolder folder;
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder / file.name, std::ios::binary) << file.text;
  }
  EXPECT_THAT(tokenizer_files(folder.path().string()),
              ElementsAre("tokenizer.json", "tokenizer_config.json"));
  const auto loaded = load_tokenizer(folder.path().string());
  const auto own = byte_tokenizer();
  for (const std::string& text : {all_bytes(), std::string("a<|endoftext|>b \xE4\xBD\xA0"),
                                  std::string(100000, 'x'), std::string()}) {
    EXPECT_EQ(loaded->encode(text), own->encode(text));
    EXPECT_EQ(loaded->encode(text, {.add_special = false, .parse_special = false}),
              own->encode(text, {.add_special = false, .parse_special = false}));
    EXPECT_EQ(loaded->decode(own->encode(text)), own->decode(own->encode(text)));
  }
  EXPECT_EQ(loaded->vocab_size(), own->vocab_size());
  EXPECT_EQ(loaded->special().bos, own->special().bos);
  EXPECT_EQ(loaded->special().eos, own->special().eos);
  EXPECT_EQ(loaded->special().pad, own->special().pad);
  for (int64_t id = -1; id <= 257; ++id) {
    EXPECT_EQ(loaded->token(id), own->token(id)) << id;
    EXPECT_EQ(loaded->is_special(id), own->is_special(id)) << id;
    if (own->token(id)) {
      EXPECT_EQ(own->id_of(*own->token(id)), id);
    }
  }
  EXPECT_EQ(own->id_of("ab"), std::nullopt);
}

TEST(ByteMap, Characters_AreDistinctPrintableAndGoBack) {
  std::string characters;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = byte_to_char(static_cast<uint8_t>(byte));
    EXPECT_EQ(char_to_byte(c), byte);
    EXPECT_GT(c, U' ');
    EXPECT_FALSE(c >= 0x7F && c <= 0xA0);
    append_utf8(characters, c);
  }
  EXPECT_EQ(bytes_to_chars(all_bytes()), characters);
  EXPECT_EQ(chars_to_bytes(characters), all_bytes());
  EXPECT_EQ(byte_to_char('\n'), 0x10AU);
  EXPECT_EQ(byte_to_char(' '), 0x120U);
  EXPECT_EQ(chars_to_bytes("a b"), std::nullopt);
  EXPECT_EQ(char_to_byte(0x144), std::nullopt);
  EXPECT_EQ(char_to_byte(0x10FFFF), std::nullopt);
}

}  // namespace
}  // namespace cleave
