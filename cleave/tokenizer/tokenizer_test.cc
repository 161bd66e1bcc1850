#include "cleave/tokenizer/tokenizer.h"

#include <array>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/steps.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// The written files must give the same ids and texts for every byte and around special tokens.
// A run saves the template that --chat-template gave beside the tokenizer, and reads its cached
// tokens again.
TEST(Tokenizer, Fingerprint_DoesNotDependOnTheChatTemplate) {
  const test::TempFolder folder;
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  const auto fingerprint = [&] { return load_tokenizer(folder.path().string())->fingerprint(); };
  write("vocab.txt", "[UNK]\na\nb\n");
  write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"})");
  const uint64_t without = fingerprint();
  write("chat_template.jinja", "a");
  EXPECT_EQ(fingerprint(), without);
  write("vocab.txt", "[UNK]\nb\na\n");
  EXPECT_NE(fingerprint(), without);
}

TEST(ByteTokenizer, WrittenFiles_LoadAsTheSameTokenizer) {
  const test::TempFolder folder;
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder / file.name, std::ios::binary) << file.text;
  }
  EXPECT_THAT(tokenizer_files(folder.path().string()),
              ElementsAre("tokenizer.json", "tokenizer_config.json"));
  const auto loaded = load_tokenizer(folder.path().string());
  const auto original = byte_tokenizer();
  for (const std::string& text : {all_bytes(), std::string("a<|endoftext|>b \xE4\xBD\xA0"),
                                  std::string(100000, 'x'), std::string()}) {
    EXPECT_EQ(loaded->encode(text), original->encode(text));
    EXPECT_EQ(loaded->encode(text, {.add_special = false, .parse_special = false}),
              original->encode(text, {.add_special = false, .parse_special = false}));
    EXPECT_EQ(loaded->decode(original->encode(text)), original->decode(original->encode(text)));
  }
  EXPECT_EQ(loaded->kind(), "bytes");
  EXPECT_EQ(loaded->fingerprint(), original->fingerprint());
  EXPECT_EQ(loaded->vocab_size(), original->vocab_size());
  EXPECT_EQ(loaded->special().bos, original->special().bos);
  EXPECT_EQ(loaded->special().eos, original->special().eos);
  EXPECT_EQ(loaded->special().pad, original->special().pad);
  for (int64_t id = -1; id <= 257; ++id) {
    EXPECT_EQ(loaded->token(id), original->token(id)) << id;
    EXPECT_EQ(loaded->is_special(id), original->is_special(id)) << id;
    if (original->token(id)) {
      EXPECT_EQ(original->id_of(*original->token(id)), id);
    }
  }
  EXPECT_EQ(original->id_of("ab"), std::nullopt);
}

TEST(ByteMap, Characters_AreDistinctPrintableAndInvertible) {
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

const std::vector<std::string> kTexts{"abcdef", "x"};

// Oracle: tokenizers.
TEST(Steps, AfterAnotherStep_SeeWhereTheTextBegins) {
  const auto pieces = [](const std::string& json, std::string_view text) {
    std::vector<std::string> out;
    read_pre_tokenizer(Json::parse(json, "tokenizer.json"))
        ->split(text, true, [&](std::string_view piece, bool) { out.emplace_back(piece); });
    return out;
  };
  EXPECT_THAT(pieces(R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
                         {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})",
                     "ab cd"),
              ElementsAre("_ab", "cd"));
  EXPECT_THAT(pieces(R"({"type": "Split", "pattern": {"Regex": "[ab]"},
                         "behavior": "MergedWithNext", "invert": true})",
                     "ab--ba-"),
              ElementsAre("a", "b", "--b", "a", "-"));
  const auto normalizer = read_normalizer(Json::parse(
      R"({"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "Prepend", "prepend": "_"}]})",
      "tokenizer.json"));
  EXPECT_EQ(normalizer->normalize(" a "), "_a");
  EXPECT_EQ(normalizer->normalize("  "), "");
}

TEST(Batch, Sequences_ArePaddedOnTheGivenSide) {
  const auto tokenizer = byte_tokenizer();
  BatchOptions options{
      .padding = Padding::kLongest, .truncation = Truncation::kLongestFirst, .max_length = 3};
  const EncodedBatch right = encode_batch(*tokenizer, kTexts, {}, options);
  EXPECT_THAT(right.input_ids[0], ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(right.input_ids[1], ElementsAre('x', 256, 256));
  EXPECT_THAT(right.attention_mask[1], ElementsAre(1, 0, 0));
  options.pad_left = true;
  options.pad_id = 7;
  const EncodedBatch left = encode_batch(*tokenizer, kTexts, {}, options);
  EXPECT_THAT(left.input_ids[1], ElementsAre(7, 7, 'x'));
  EXPECT_THAT(left.attention_mask[1], ElementsAre(0, 0, 1));
}

TEST(Batch, Pairs_AreTruncatedByTheGivenRule) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<std::string> first{"abcdef"};
  const std::vector<std::string> second{"uvwxyz"};
  const auto encode = [&](Truncation truncation, int64_t length) {
    const BatchOptions options{.truncation = truncation, .max_length = length};
    return encode_batch(*tokenizer, first, second, options).input_ids[0];
  };
  EXPECT_THAT(encode(Truncation::kLongestFirst, 5), ElementsAre('a', 'b', 'u', 'v', 'w'));
  EXPECT_THAT(encode(Truncation::kOnlyFirst, 8),
              ElementsAre('a', 'b', 'u', 'v', 'w', 'x', 'y', 'z'));
  EXPECT_THAT(encode(Truncation::kOnlySecond, 7), ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'u'));
  EXPECT_EQ(test::thrown_by([&] { encode(Truncation::kOnlySecond, 6); }).code(), Code::kShape);
}

TEST(Batch, OptionsThatDoNotFit_AreRefused) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<std::string> one{"a"};
  EXPECT_THAT(test::thrown_by([&] { encode_batch(*tokenizer, kTexts, one, {}); }).what(),
              HasSubstr("2 texts and 1 pairs"));
  EXPECT_THAT(test::thrown_by([&] {
                encode_batch(*tokenizer, kTexts, {},
                             {.truncation = Truncation::kLongestFirst, .max_length = -1});
              }).what(),
              HasSubstr("a sequence of -1 tokens has no room"));
  EXPECT_THAT(test::thrown_by([&] {
                encode_batch(*tokenizer, kTexts, {},
                             {.truncation = Truncation::kOnlySecond, .max_length = 2});
              }).what(),
              HasSubstr("needs pairs"));
}

const std::string kBad = "\xEF\xBF\xBD";

/// A tokenizer like SentencePiece's: a mark for spaces, byte tokens, a begin token.
std::shared_ptr<const Tokenizer> sentence_piece_like() {
  constexpr const char* kJson = R"({
    "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "merges": [], "vocab": {"<s>": 0, "\u2581the": 1, "\u2581": 2,
      "x": 3, "<0xE4>": 4, "<0xBD>": 5, "<0xA0>": 6, "<0xFF>": 7}}})";
  return make_pipeline(read_pipeline(Json::parse(kJson, "test")));
}

TEST(StreamDecoder, UnfinishedCharacter_IsHeldBack) {
  StreamDecoder stream(byte_tokenizer());
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xBD), "");
  EXPECT_EQ(stream.push(0xA0), "\xE4\xBD\xA0");
  EXPECT_EQ(stream.push('b'), "b");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, IncompleteBytes_AreReturnedWithTheNextCharacterOrAtTheEnd) {
  StreamDecoder stream(byte_tokenizer());
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('x'), kBad + "x");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), kBad);
}

TEST(StreamDecoder, BadBytes_AreReturnedExceptForTheLast) {
  StreamDecoder stream(byte_tokenizer());
  std::string text;
  for (int i = 0; i < 100; ++i) text += stream.push(0xFF);
  EXPECT_EQ(text.size(), 99 * kBad.size());
  text += stream.finish();
  EXPECT_EQ(text.size(), 100 * kBad.size());
}

std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const int64_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

// Oracle: tokenizers 0.23.3 with the same decoder.
TEST(StreamDecoder, InvalidBytes_MatchTokenizers) {
  const std::string character = "\xE4\xBD\xA0";
  const auto times = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += kBad;
    return text;
  };
  Ids many(31, 0xFF);
  many.insert(many.end(), {0xE4, 0xBD, 0xA0});
  EXPECT_EQ(streamed(byte_tokenizer(), many), times(31) + character);
  EXPECT_EQ(streamed(byte_tokenizer(), {0xF0, 0x9F, 0x98, 0xF0, 0x9F, 0x98, 0x80}),
            kBad + "\xF0\x9F\x98\x80");
  EXPECT_EQ(streamed(byte_tokenizer(), {0xED, 0xA0, 0x80}), times(3));
  const auto pieces = sentence_piece_like();
  const Ids after_whole{4, 5, 6, 7};  // an invalid byte after a complete character
  EXPECT_EQ(streamed(pieces, after_whole), character + times(4));
  EXPECT_EQ(StreamDecoder(pieces).finish(after_whole), times(4));
  EXPECT_EQ(streamed(pieces, {7, 7, 7, 4, 5, 6, 3}), times(6) + "x");
  EXPECT_EQ(streamed(pieces, {4, 5, 6, 3, 4, 3}), character + "x" + kBad + "x");
  EXPECT_EQ(streamed(pieces, {4, 5, 0, 6, 3}), character + "x");  // with a skipped token
}

TEST(StreamDecoder, AnyIds_GiveTheDecodedText) {
  const auto pieces = sentence_piece_like();
  const auto bytes = byte_tokenizer();
  for (uint64_t round = 0; round < 300; ++round) {
    std::vector<float> drawn(40);
    fill_uniform(stream_key(1, "stream decoder test"), round, 0, drawn);
    Ids of_pieces;
    Ids of_bytes;
    for (const float u : drawn) {
      of_pieces.push_back(static_cast<int64_t>(u * 8));
      // Bytes that form complete, incomplete and invalid characters.
      constexpr std::array<int64_t, 8> kBytes{0x41, 0x80, 0xA0, 0xC3, 0xE4, 0xF0, 0x9F, 0xFF};
      of_bytes.push_back(kBytes[static_cast<size_t>(u * 8)]);
    }
    EXPECT_EQ(StreamDecoder(pieces).finish(of_pieces), pieces->decode(of_pieces, true)) << round;
    EXPECT_EQ(streamed(bytes, of_bytes), bytes->decode(of_bytes, true)) << round;
  }
}

/// Counts the ids that another tokenizer decodes.
class CountedTokenizer final : public Tokenizer {
 public:
  explicit CountedTokenizer(std::shared_ptr<const Tokenizer> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int64_t vocab_size() const override { return inner_->vocab_size(); }
  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    return inner_->token(id);
  }
  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    return inner_->id_of(token);
  }
  [[nodiscard]] bool is_special(int64_t id) const override { return inner_->is_special(id); }
  [[nodiscard]] size_t num_decoded() const { return num_decoded_; }

 protected:
  [[nodiscard]] Ids encode_text(std::string_view text, bool parse_special) const override {
    return inner_->encode(text, {.add_special = false, .parse_special = parse_special});
  }
  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    num_decoded_ += ids.size();
    return inner_->decode(ids);
  }

 private:
  std::shared_ptr<const Tokenizer> inner_;
  mutable size_t num_decoded_ = 0;
};

// Ids without text, and bytes that are no text. Each id is decoded with those of a window that does
// not grow; after the run, the whole once.
TEST(StreamDecoder, LongRunsWithoutText_TakeTimeInProportionToTheirLength) {
  constexpr size_t kMost = 64 + 32;  // ids that a push may decode
  const auto bytes = byte_tokenizer();
  const auto pieces = sentence_piece_like();
  const std::pair<std::shared_ptr<const Tokenizer>, Ids> cases[] = {
      {bytes, {256}},  {bytes, {1000}},        {bytes, {0xFF}},
      {bytes, {0xE4}}, {bytes, {0xF0, 0x9F}},  {bytes, {0xF0, 0x9F, 0x98, 0x80}},
      {pieces, {0}},   {pieces, {7}},          {pieces, {4, 5, 7}},
      {pieces, {4}},   {pieces, {1000, 7, 0}}, {pieces, {4, 5, 0, 1000, 4}}};
  for (const auto& [tokenizer, period] : cases) {
    Ids ids(3000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = period[i % period.size()];
    ids.push_back(tokenizer == bytes ? 'x' : 3);
    const auto counted = std::make_shared<CountedTokenizer>(tokenizer);
    StreamDecoder stream(counted);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    text += stream.finish();
    EXPECT_EQ(text, tokenizer->decode(ids, true)) << testing::PrintToString(period);
    EXPECT_LT(counted->num_decoded(), ids.size() * kMost) << testing::PrintToString(period);
  }
}

TEST(StreamDecoder, SpaceOfTheFirstWordOnly_IsDropped) {
  const auto tokenizer = sentence_piece_like();
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(1), "the");
  EXPECT_EQ(stream.push(1), " the");
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.push(6), "\xE4\xBD\xA0");
  EXPECT_EQ(stream.push(2), " ");
  EXPECT_EQ(stream.push(3), "x");
}

TEST(StreamDecoder, AfterAPrompt_OnlyNewTextIsReturned) {
  StreamDecoder stream(sentence_piece_like());
  stream.skip(Ids{0, 1, 1});
  EXPECT_EQ(stream.push(1), " the");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, SpecialTokens_AreReturnedOnRequest) {
  StreamDecoder hidden(byte_tokenizer());
  EXPECT_EQ(hidden.push(256), "");
  EXPECT_EQ(hidden.push('a'), "a");
  StreamDecoder shown(byte_tokenizer(), false);
  EXPECT_EQ(shown.push(256), "<|endoftext|>");
}

}  // namespace
}  // namespace cleave::tokenizer_test
