#include "cleave/tokenizer/stream_decoder.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/tokenizer/pipeline.h"

namespace cleave {
namespace {

using Ids = std::vector<int64_t>;
const std::string kBad = "\xEF\xBF\xBD";

/// Tokens of SentencePiece's kind: a mark for spaces, bytes, a begin token.
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

TEST(StreamDecoder, BytesThatNeverFinish_ComeWithTheNextCharacterOrTheEnd) {
  StreamDecoder stream(byte_tokenizer());
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('x'), kBad + "x");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), kBad);
}

TEST(StreamDecoder, BadBytes_AreShownButForTheLast) {
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

// Expected: what tokenizers 0.23.3 decodes with the same decoder.
TEST(StreamDecoder, InvalidBytes_JoinToWhatTokenizersDecodes) {
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
  const Ids after_whole{4, 5, 6, 7};  // a wrong byte after a whole character
  EXPECT_EQ(streamed(pieces, after_whole), character + times(4));
  EXPECT_EQ(StreamDecoder(pieces).finish(after_whole), times(4));
  EXPECT_EQ(streamed(pieces, {7, 7, 7, 4, 5, 6, 3}), times(6) + "x");
  EXPECT_EQ(streamed(pieces, {4, 5, 6, 3, 4, 3}), character + "x" + kBad + "x");
  EXPECT_EQ(streamed(pieces, {4, 5, 0, 6, 3}), character + "x");  // a token that is left out
}

TEST(StreamDecoder, AnyIds_JoinToTheDecodedText) {
  const auto pieces = sentence_piece_like();
  const auto bytes = byte_tokenizer();
  for (uint64_t row = 0; row < 300; ++row) {
    std::vector<float> drawn(40);
    fill_uniform(stream_key(1, "stream decoder test"), row, 0, drawn);
    Ids of_pieces;
    Ids of_bytes;
    for (const float u : drawn) {
      of_pieces.push_back(static_cast<int64_t>(u * 8));
      // Bytes around which characters are made and broken.
      constexpr std::array<int64_t, 8> kBytes{0x41, 0x80, 0xA0, 0xC3, 0xE4, 0xF0, 0x9F, 0xFF};
      of_bytes.push_back(kBytes[static_cast<size_t>(u * 8)]);
    }
    EXPECT_EQ(StreamDecoder(pieces).finish(of_pieces), pieces->decode(of_pieces, true)) << row;
    EXPECT_EQ(streamed(bytes, of_bytes), bytes->decode(of_bytes, true)) << row;
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

TEST(StreamDecoder, AfterAPrompt_OnlyNewTextComes) {
  StreamDecoder stream(sentence_piece_like());
  stream.skip(Ids{0, 1, 1});
  EXPECT_EQ(stream.push(1), " the");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, SpecialTokens_AreShownOnRequest) {
  StreamDecoder hidden(byte_tokenizer());
  EXPECT_EQ(hidden.push(256), "");
  EXPECT_EQ(hidden.push('a'), "a");
  StreamDecoder shown(byte_tokenizer(), false);
  EXPECT_EQ(shown.push(256), "<|endoftext|>");
}

}  // namespace
}  // namespace cleave
