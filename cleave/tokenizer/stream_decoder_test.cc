#include "cleave/tokenizer/stream_decoder.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

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
      "x": 3, "<0xE4>": 4, "<0xBD>": 5, "<0xA0>": 6}}})";
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

TEST(StreamDecoder, EndlessBadBytes_AreShownAfterAWhile) {
  StreamDecoder stream(byte_tokenizer());
  std::string text;
  for (int i = 0; i < 100; ++i) text += stream.push(0xFF);
  EXPECT_GE(text.size(), 60 * kBad.size());
  text += stream.finish();
  EXPECT_EQ(text.size(), 100 * kBad.size());
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
