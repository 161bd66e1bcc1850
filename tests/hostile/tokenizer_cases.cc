// A folder's tokenizer.json is refused with key and byte, or its tokenizer encodes any bytes to ids
// of its vocabulary.
#include <array>
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

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

/// A change of kGood, and the expected error.
struct Change {
  std::string from, to, message;
};

/// Values.
std::vector<Change> wrong_values() {
  return {

      {"\"a\": 2", "\"a\": 3", "\"model.vocab.b\" is 3; the token \"a\" has the same id"},
      {"\"a\": 2", "\"a\": -2", "\"model.vocab.a\" is -2"},
      {"\"a\": 2", "\"a\": 4294967295", "expected an integer in [0, 16777215]"},
      {"\"a\": 2", "\"a\": 2.5", "\"model.vocab.a\" is 2.5"},
      {"\"a\": 2", "\"a\": null", "\"model.vocab.a\" is null"},
      {"\"a\": 2", "\"a\": 2, \"\\u0061\": 9", "the key \"a\" occurs twice"},
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
      {"\"type\": \"BPE\"", "\"type\": \"Unigram\"",
       "expected an array of tokens and their scores"},
      {"\"type\": \"BPE\"", "\"type\": \"Letters\"", "\"model.type\" is \"Letters\""},
      {"\"type\": \"BPE\"", "\"dropout\": 0.1", "\"model.dropout\" is 0.1"},
      {"\"fuse_unk\": true", "\"fuse_unk\": 1", "expected true or false"},
      {"{\"<s>\": 0, \"?\": 1, \"a\": 2, \"b\": 3, \"ab\": 4, \" \": 5}", "{}", "\"model.vocab\""},
      {"\"id\": 0, \"content\"", "\"id\": 2, \"content\"", "assigns this id to \"a\""},
      {"\"id\": 0, \"content\"", "\"id\": 9, \"content\"", "assigns this token the id 0"},
      {"\"id\": 0, \"content\"", "\"id\": -1, \"content\"", "\"added_tokens[0].id\" is -1"},
      {"\"id\": 0, \"content\"", "\"content\"", "\"added_tokens[0].id\" is missing"},
      {"\"added_tokens\": [",
       "\"added_tokens\": [{\"id\": 7, \"content\": \"z\"}, {\"id\": 7, \"content\": \"y\"},",
       "another added token has the same id"},
      {"\"added_tokens\": [", "\"added_tokens\": [{\"id\": 7, \"content\": \"<s>\"},",
       "assigns this token the id 0"},
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
}

/// Odd but allowed values.
std::vector<Change> odd_values() {
  return {
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
      {"\"content\": \"<s>\"", "\"content\": \"\"", "assigns this id"},
      {"\"type\": \"BPE\"", "\"type\": null", ""},
      {"\"content\": \"<s>\"", "\"content\": \"\\u0000\"", "assigns this id"},
      {"\"id\": 0, \"content\": \"<s>\"", "\"id\": 70, \"content\": \" \\t\"", ""},
      {"\"start\": 1", "\"start\": 2000000000", ""},
  };
}

/// Model and file.
std::vector<Change> wrong_parts() {
  return {
      {"\"added_tokens\": [{", "\"added_tokens\": [7, {", "\"added_tokens[0]\""},
      {"\"added_tokens\": [{", "\"added_tokens\": [{\"id\": 8}, {",
       "\"added_tokens[0].content\" is missing"},
      {"\"special\": true", "\"special\": 1", "\"added_tokens[0].special\" is 1"},
      {"\"normalized\": false", "\"normalized\": \"no\"", "expected true or false"},
      {"\"id\": 0, \"content\"", "\"id\": 16777216, \"content\"", "in [0, 16777215]"},
      {"\"id\": 0, \"content\"", "\"id\": 1e400, \"content\"", "\"added_tokens[0].id\" is 1e400"},
      {"\"id\": 0, \"content\"", "\"id\": 9223372036854775808, \"content\"", "added_tokens[0].id"},
      {"\"a\": 2", "\"a\": 16777216", "in [0, 16777215]"},
      {"\"a\": 2", "\"a\": \"2\"", "\"model.vocab.a\" is \"2\""},
      {"\"a\": 2", "\"a\": [2]", "\"model.vocab.a\""},
      {"{\"type\": \"Sequence\", \"normalizers\"", "{\"type\": \"Sequence\", \"normalisers\"",
       "\"normalizer.normalizers\" is missing"},
      {"\"normalizer\": {", "\"normalizer\": \"NFC\", \"x\": {", "\"normalizer\""},
      {"\"pre_tokenizer\": {", "\"pre_tokenizer\": [], \"x\": {", "\"pre_tokenizer\""},
      {"\"decoder\": {", "\"decoder\": 0, \"x\": {", "\"decoder\""},
      {"\"post_processor\": {", "\"post_processor\": \"x\", \"y\": {", "\"post_processor\""},
      {"{\"Regex\": \"x+\"}", "{\"Regex\": 7}", "Regex"},
      {"{\"Regex\": \"x+\"}", "{\"Glob\": \"x*\"}", "pattern"},
      {"{\"Regex\": \"x+\"}", "{\"Regex\": \"[x\"}", "is wrong"},
      {"{\"Regex\": \"x+\"}", "{\"Regex\": \"x{70000}\"}", "is wrong"},
      {"\"behavior\": \"Isolated\"", "\"behavior\": null", "behavior"},
      {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 1.5", "\"model.dropout\" is 1.5"},
      {"\"type\": \"BPE\"", "\"type\": \"WordLevel\"", "\"model.type\" is \"WordLevel\""},
      {"\"model\": {", "\"model\": null, \"x\": {", "model"},
      {"\"model\": {", "\"model\": [], \"x\": {", "model"},
      {"[\"a b\"]", "\"a b\"", "expected an array of merges"},
      {"[\"a b\"]", "[\"abababababababab b\"]", "expected both parts"},
      {"[\"a b\"]", "[\"\"]", "one space"},
      {"[\"a b\"]", "[\" \"]", "model.merges[0]"},
      {"\"type_id\": 1", "\"type_id\": -1", "type_id"},
      {"\"type_id\": 1", "\"type_id\": 4294967296", "type_id"},
      {"\"tokens\": [\"<s>\"]", "\"tokens\": [\"<s>\"], \"tokens\": []", "occurs twice"},
      {"\"ids\": [0]", "\"ids\": [-1]", "\"post_processor.special_tokens.<s>.ids[0]\" is -1"},
      {"\"ids\": [0]", "\"ids\": [0.5]", "is 0.5"},
      {"\"start\": 1", "\"start\": 1e400", "start"},
      {"\"stop\": 0", "\"stop\": -9223372036854775809", "stop"},
  };
}

/// The text itself.
std::vector<HostileCase> wrong_texts() {
  const std::string vocab = R"({"model":{"type":"BPE","merges":[],"vocab":{)";
  return {
      {"no bytes", "", "found the end of the text"},
      {"a byte order mark", "\xEF\xBB\xBF" + kGood, "byte order mark"},
      {"an array", "[]", "expected an object"},
      {"a number", "7", "expected an object"},
      {"two documents", kGood + kGood, "nothing after the end"},
      {"half a document", kGood.substr(0, kGood.size() / 2), "found the end"},
      {"a NUL after the end", kGood + std::string(1, '\0'), "nothing after the end"},
      {"bad UTF-8", changed(kGood, "\"ab\"", "\"\xC3\x28\""), "not valid UTF-8"},
      {"half a surrogate pair", changed(kGood, "\"ab\"", "\"\\ud83d\""), "surrogate"},
      {"100,000 open brackets", repeated("[", 100'000), "nested deeper"},
      {"a normalizer in a normalizer, 100,000 times", "", "nested deeper",
       [] {
         return R"({"normalizer":)" + repeated(R"({"type":"Sequence","normalizers":[)", 100'000);
       }},
      {"5 million values", "", "more than 4194304 values",
       [] { return "[" + repeated("0,", 5'000'000) + "0]"; }},
      {"an id that asks for terabytes", vocab + R"("a":16777216}}})", "in [0, 16777215]"},
      {"WordPiece without its unknown token", changed(kGoodWordPiece, "\"[UNK]\", ", "\"none\", "),
       "unknown token \"none\""},
      {"WordPiece of words without letters", changed(kGoodWordPiece, ": 100", ": 0"),
       "\"model.max_input_chars_per_word\" is 0"},
      {"WordPiece of words of 2^63 letters",
       changed(kGoodWordPiece, ": 100", ": 9223372036854775808"), "max_input_chars_per_word"},
  };
}

/// Files that other readers accept and then fail on; here they work.
std::vector<HostileCase> sound() {
  const std::string stride = R"("truncation":{"direction":"Right","max_length":3,"strategy":)"
                             R"("LongestFirst","stride":9},)";
  const std::string fixed = R"("padding":{"strategy":{"Fixed":0},"direction":"Right","pad_id":0,)"
                            R"("pad_type_id":0,"pad_token":"?"},)";
  const std::string begin = "{\n  \"added_tokens\"";
  return {
      {"valid", kGood, ""},
      {"valid WordPiece", kGoodWordPiece, ""},
      {"a truncation whose stride is its length", "{" + stride + kGood.substr(1), ""},
      {"a padding to no length", "{" + fixed + kGood.substr(1), ""},
      {"unknown fields", changed(kGood, begin, "{\"x\": {\"y\": [1]},\n  \"added_tokens\""), ""},
      {"no added tokens, no other parts", R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
       ""},
      {"a token of 16 MB", "", "",
       [] {
         return R"({"model":{"type":"BPE","merges":[],"vocab":{")" + std::string(16'000'000, 'x') +
                "\":0}}}";
       }},
      {"a very large id", R"({"model":{"type":"BPE","vocab":{"a":16777215},"merges":[]}})", ""},
  };
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made{
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
    // Forty more texts of pseudo-random bytes.
    for (size_t i = 0; made.size() < 50; ++i) {
      std::string text;
      for (size_t j = 0; j < 16 + i; ++j) text += static_cast<char>((i * 37 + j * j * 101) & 0xff);
      made.push_back(text);
    }
    return made;
  }();
  return all;
}

void check_sound(const Tokenizer& tokenizer) {
  for (const std::string& text : texts()) {
    const std::vector<int64_t> ids = tokenizer.encode(text);
    for (const int64_t id : ids) {
      CLEAVE_CHECK(id >= 0 && id < tokenizer.vocab_size(), Code::kBug, "encode gave id ", id);
    }
    (void)tokenizer.decode(ids);
  }
}

}  // namespace

HostileSet tokenizer_set() {
  HostileSet set{.kind = "tokenizer_json",
                 .file_name = "tokenizer.json",
                 .least = 100,
                 .most_seconds = 1,
                 .most_mib = 256,
                 .seed = kGood,
                 .cases = wrong_texts()};
  const auto add_changes = [&](const std::vector<Change>& changes) {
    for (const Change& c : changes) {
      set.cases.push_back(
          {c.from + " as " + c.to.substr(0, 100), changed(kGood, c.from, c.to), c.message});
    }
  };
  add_changes(wrong_values());
  add_changes(wrong_parts());
  add_changes(odd_values());
  for (HostileCase& c : sound()) set.cases.push_back(std::move(c));
  set.read = [](const std::filesystem::path& folder) {
    check_sound(*load_tokenizer(folder.string()));
  };
  return set;
}

}  // namespace cleave::test
