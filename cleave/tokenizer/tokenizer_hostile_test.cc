#include <array>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// Files that someone made wrong, by accident or not: an error that says where, or a tokenizer whose
// ids lie in its vocabulary; never a crash.
namespace cleave {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const std::string kGood = R"({
  "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
    {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "x"}]},
  "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated"},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
    "pair": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
  "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0},
  "model": {"type": "BPE", "unk_token": "?", "byte_fallback": false, "fuse_unk": true,
    "vocab": {"<s>": 0, "?": 1, "a": 2, "b": 3, "ab": 4, " ": 5},
    "merges": ["a b"]}
})";

const std::string kGoodWordPiece = R"({
  "normalizer": {"type": "BertNormalizer", "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece"},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100,
    "vocab": {"[UNK]": 0, "a": 1, "##b": 2}}
})";

class Folder {
 public:
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  [[nodiscard]] std::shared_ptr<const Tokenizer> load() const {
    return load_tokenizer(folder_.path().string());
  }
  [[nodiscard]] std::string error(Code code = Code::kFormat) const {
    const Error error = test::thrown_by([this] { (void)load(); });
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }

 private:
  test::TempFolder folder_;
};

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const std::array<std::string, 10>& texts() {
  static const std::array<std::string, 10> kTexts{
      "",
      "ab ab<s>xx",
      "\xFF\xFE\xC0\x80",
      std::string("\0a\0", 3),
      "\xED\xA0\x80"
      "ab\xF4\x90\x80\x80",
      "  \t\r\n ",
      "e\xCC\x81\xE4\xBD\xA0\xF0\x9F\x98\x80",
      std::string(3000, 'x') + std::string(3000, 'a'),
      std::string(2000, ' ') + "ab",
      "<s><s> <s>a",
  };
  return kTexts;
}

/// Ids inside the vocabulary, text that decodes to valid UTF-8, all of it soon.
void expect_sound(const Tokenizer& tokenizer) {
  for (const std::string& text : texts()) {
    const std::clock_t start = std::clock();
    const Ids ids = tokenizer.encode(text);
    for (const int64_t id : ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, tokenizer.vocab_size());
    }
    (void)tokenizer.decode(ids);
    EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC) << text;
  }
}

struct Change {
  std::string from, to, message;
};

TEST(TokenizerHostile, GoodFiles_Load) {
  const Folder folder;
  folder.write("tokenizer.json", kGood);
  expect_sound(*folder.load());
  EXPECT_EQ(folder.load()->encode("ab"), (Ids{0, 4}));
  folder.write("tokenizer.json", kGoodWordPiece);
  expect_sound(*folder.load());
  EXPECT_EQ(folder.load()->encode("AB c"), (Ids{1, 2, 0}));
}

/// What is changed in kGood, and what the error says of it.
const std::vector<Change> kWrong{
    {"\"a\": 2", "\"a\": 3", "\"model.vocab.b\" is 3; the token \"a\" has the same id"},
    {"\"a\": 2", "\"a\": -2", "\"model.vocab.a\" is -2"},
    {"\"a\": 2", "\"a\": 4294967295", "expected an integer in [0, 16777215]"},
    {"\"a\": 2", "\"a\": 2.5", "\"model.vocab.a\" is 2.5"},
    {"\"a\": 2", "\"a\": null", "\"model.vocab.a\" is null"},
    {"\"a\": 2", "\"a\": 2, \"\\u0061\": 9", "the key \"a\" stands twice"},
    {"[\"a b\"]", "[\"a c\"]", "\"model.merges[0]\" is \"a c\"; expected both parts"},
    {"[\"a b\"]", "[\"ab ab\"]", "\"model.merges[0]\""},
    {"[\"a b\"]", "[\"abb\"]", "one space"},
    {"[\"a b\"]", "[\"a b c\"]", "one space"},
    {"[\"a b\"]", "[[\"a\"]]", "expected two tokens"},
    {"[\"a b\"]", "[[\"a\", \"b\", \"a\"]]", "expected two tokens"},
    {"[\"a b\"]", "[[\"a\", 3]]", "\"model.merges[0][1]\" is 3; expected a string"},
    {"[\"a b\"]", "[7]", "\"model.merges[0]\" is 7"},
    {"[\"a b\"]", "{}", "expected an array of merges"},
    {"\"unk_token\": \"?\"", "\"unk_token\": \"none\"", "expected a token of the vocabulary"},
    {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "\"model.type\" is \"Unigram\""},
    {"\"type\": \"BPE\"", "\"dropout\": 0.1", "\"model.dropout\" is 0.1"},
    {"\"fuse_unk\": true", "\"fuse_unk\": 1", "expected true or false"},
    {"{\"<s>\": 0, \"?\": 1, \"a\": 2, \"b\": 3, \"ab\": 4, \" \": 5}", "{}", "\"model.vocab\""},
    {"\"id\": 0, \"content\"", "\"id\": 2, \"content\"", "gives this id to \"a\""},
    {"\"id\": 0, \"content\"", "\"id\": 9, \"content\"", "gives this token the id 0"},
    {"\"id\": 0, \"content\"", "\"id\": -1, \"content\"", "\"added_tokens[0].id\" is -1"},
    {"\"id\": 0, \"content\"", "\"content\"", "\"added_tokens[0].id\" is missing"},
    {"\"added_tokens\": [",
     "\"added_tokens\": [{\"id\": 7, \"content\": \"z\"}, {\"id\": 7, \"content\": \"y\"},",
     "another added token has the same id"},
    {"\"added_tokens\": [", "\"added_tokens\": [{\"id\": 7, \"content\": \"<s>\"},",
     "gives this token the id 0"},
    {"\"added_tokens\": [",
     "\"added_tokens\": [{\"id\": 7, \"content\": \"z\"}, {\"id\": 8, \"content\": \"z\"},",
     "same content"},
    {"\"added_tokens\": [",
     "\"added_tokens\": [{\"id\": 7, \"content\": \"" + std::string(2000, 'z') + "\"},",
     "at most 1024 bytes"},
    {"\"type\": \"NFC\"", "\"type\": \"Nmt\"", "expected Sequence, Prepend"},
    {"\"type\": \"NFC\"", "\"type\": 5", "\"normalizer.normalizers[0].type\" is 5"},
    {"\"x+\"", "\"(x\"", "the regular expression \"(x\" is wrong"},
    {"\"behavior\": \"Isolated\"", "\"behavior\": \"isolated\"", "expected Removed, Isolated"},
    {"\"type\": \"Split\"", "\"type\": \"Sentence\"", "\"pre_tokenizer.type\""},
    {"\"ids\": [0]", "\"ids\": [6]", "expected an integer in [0, 5]"},
    {"\"ids\": [0]", "\"ids\": 0", "expected an array of ids"},
    {"{\"Sequence\": {\"id\": \"A\"}}],", "{\"Sequence\": {\"id\": \"B\"}}],", "sequence A once"},
    {"\"single\": [{\"SpecialToken\": {\"id\": \"<s>\"",
     "\"single\": [{\"SpecialToken\": {\"id\": \"z\"",
     "\"post_processor.special_tokens.z\" is missing"},
    {"\"type\": \"Strip\"", "\"type\": \"CTC\"", "\"decoder.type\" is \"CTC\""},
    {"\"content\": \" \", \"start\"", "\"content\": \"ab\", \"start\"", "expected one character"},
    {"\"start\": 1", "\"start\": -1", "expected an integer in [0,"},
    {"\"model\":", "\"modell\":", "\"model\" is missing"},
    {"\"merges\"", "\"merge\"", "\"model.merges\" is missing"},
};

TEST(TokenizerHostile, WrongJson_IsRefusedWithKeyAndByte) {
  const Folder folder;
  for (const Change& change : kWrong) {
    folder.write("tokenizer.json", changed(kGood, change.from, change.to));
    const std::string error = folder.error();
    EXPECT_THAT(error, HasSubstr(change.message)) << change.to;
    EXPECT_THAT(error, HasSubstr("tokenizer.json: ")) << change.to;
    EXPECT_THAT(error, HasSubstr("byte ")) << change.to;
  }
  folder.write("tokenizer.json", changed(kGoodWordPiece, ": 100", ": 0"));
  EXPECT_THAT(folder.error(), HasSubstr("\"model.max_input_chars_per_word\" is 0"));
  folder.write("tokenizer.json", changed(kGoodWordPiece, "\"[UNK]\", ", "\"none\", "));
  EXPECT_THAT(folder.error(), HasSubstr("unknown token \"none\""));
}

TEST(TokenizerHostile, OddButValidFiles_StaySound) {
  const std::vector<Change> changes{
      {"\"x+\"", "\"(x+)+$\"", ""},
      {"\"x+\"", "\"x*\"", ""},
      {"\"x+\"", "\"\"", ""},
      {"{\"String\": \" \"}", "{\"String\": \"\"}", ""},
      {"{\"String\": \" \"}", "{\"Regex\": \"(a|a)*b\"}", ""},
      {"\"unk_token\": \"?\"", "\"unk_token\": null", ""},
      {"\"byte_fallback\": false", "\"byte_fallback\": true", ""},
      {"\" \": 5}", "\" \": 9000000}", ""},
      {"\"special\": true", "\"special\": true, \"lstrip\": true, \"rstrip\": true", ""},
      {"\"special\": true", "\"special\": true, \"single_word\": true", ""},
      {"\"content\": \"<s>\"", "\"content\": \"\"", ""},
      {"\"content\": \"<s>\"", "\"content\": \"\\u0000\"", ""},
      {"\"id\": 0, \"content\": \"<s>\"", "\"id\": 70, \"content\": \" \\t\"", ""},
      {"\"start\": 1", "\"start\": 2000000000", ""},
  };
  const Folder folder;
  for (const Change& change : changes) {
    // An added token with an id of its own needs that id free: it is no error of the odd value.
    folder.write("tokenizer.json", changed(kGood, change.from, change.to));
    try {
      expect_sound(*folder.load());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat) << change.to;
      EXPECT_THAT(error.what(), HasSubstr("gives this id")) << change.to;
    }
  }
}

// Seeds are fixed: a failure repeats.
TEST(TokenizerHostile, RandomMutations_AreRefusedOrSound) {
  std::mt19937 random(7);
  int accepted = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = round % 2 == 0 ? kGood : kGoodWordPiece;
    const size_t edits = 1 + random() % 3;
    for (size_t i = 0; i < edits; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
          break;
        default:
          text[at] = "0123456789\"{}[],:-"[random() % 18];
      }
    }
    try {
      const auto tokenizer = make_pipeline(read_pipeline(Json::parse(text, "mutated")));
      ++accepted;
      for (const int64_t id : tokenizer->encode("ab <s>\xFFxx")) {
        ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size()) << text;
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kFormat) << error.what() << text;
    }
  }
  EXPECT_GT(accepted, kRounds / 100);
  EXPECT_LT(accepted, kRounds / 2);
}

TEST(TokenizerHostile, OlderFiles_AreRefusedWithTheirLine) {
  const Folder empty;
  EXPECT_THAT(empty.error(Code::kIo), HasSubstr("holds no tokenizer"));
  const Folder ranks;
  ranks.write("tokenizer.model", "IQ== 0\nIg== 2\n");
  EXPECT_THAT(ranks.error(), HasSubstr("tokenizer.model:2: the rank is 2; expected 1"));
  ranks.write("tokenizer.model", "IQ== 0\nIg= 1\n");
  EXPECT_THAT(ranks.error(), HasSubstr("tokenizer.model:2: 'Ig= 1' is no rank"));
  ranks.write("tokenizer.model", "IQ== 0\n== 1\n");
  EXPECT_THAT(ranks.error(), HasSubstr("tokenizer.model:2"));
  const Folder merges;
  merges.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  merges.write("merges.txt", "#version: 0.2\na b\nb a\n");
  EXPECT_THAT(merges.error(), HasSubstr("merges.txt:3: 'b a' is no merge"));
  const Folder words;
  words.write("vocab.txt", "a\n##b\n");
  EXPECT_THAT(words.error(), HasSubstr("vocab.txt has no line \"[UNK]\""));
  words.write("vocab.txt", "");
  EXPECT_THAT(words.error(), HasSubstr("[UNK]"));
  words.write("vocab.txt", "a\n[UNK]\n##b\n");
  words.write("tokenizer_config.json", R"({"do_lower_case": "yes"})");
  EXPECT_THAT(words.error(), HasSubstr("\"do_lower_case\" is \"yes\"; expected true or false"));
  words.write("tokenizer_config.json", R"({"bos_token": 5})");
  EXPECT_THAT(words.error(), HasSubstr("\"bos_token\" is 5"));
}

TEST(TokenizerHostile, BytesThatAreNoSentencePieceModel_AreRefused) {
  const Folder folder;
  std::mt19937 random(3);
  std::string bytes(500, '\0');
  for (const std::string& start :
       {std::string(), std::string("\x0A\x05\x0A\x01z"), std::string("\x0A\xFF\xFF\xFF\xFF\x0F")}) {
    for (char& byte : bytes) byte = static_cast<char>(random() % 256);
    folder.write("tokenizer.model", start + bytes);
    EXPECT_THAT(folder.error(), HasSubstr("no SentencePiece model"));
  }
  folder.write("tokenizer.model", "");
  EXPECT_THAT(folder.error(), HasSubstr("tokenizer.model has 0 bytes"));
}

}  // namespace
}  // namespace cleave
