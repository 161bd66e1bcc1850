#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/text/json.h"
#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// Oracle: ids and texts of the reference libraries, for the small tokenizers in tests/golden and
// for published ones, whose answers are in goldens/tokenizers of $CLEAVE_DATA.
namespace cleave::golden_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

/// The folder of the tokenizers, and the folder of the libraries' answers.
struct Source {
  fs::path tokenizers, answers;
};

Source small_tokenizers() {
  const fs::path folder = test::source_file("tests/golden/tokenizer/small");
  return {folder, folder};
}

std::optional<Source> real_tokenizers() {
  const char* folder = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
  if (folder == nullptr) return std::nullopt;
  return Source{fs::path(folder) / "tokenizers", fs::path(folder) / "goldens/tokenizers"};
}

#define SKIP_WITHOUT_REAL_TOKENIZERS()                                             \
  if (!real_tokenizers()) {                                                        \
    GTEST_SKIP() << "CLEAVE_DATA is not set: it names the folder with tokenizers"; \
  }

/// The answers for every text. One without "decoded" decodes to its text.
std::vector<Json> read_lines(const Source& source, const std::string& name) {
  std::ifstream file(source.answers / name);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line, name));
  EXPECT_EQ(lines.size(), 300U) << source.answers / name;
  return lines;
}

std::vector<std::string> read_texts(const Source& source) {
  std::vector<std::string> texts;
  for (const Json& line : read_lines(source, "strings.jsonl")) {
    texts.push_back(line.at("text").as_string());
  }
  return texts;
}

/// The ids of a list in which a string stands for the ids `plain`; a string alone is `plain`.
Ids ids_of(const Json& json, const Ids& plain) {
  if (json.is(Json::Type::kString)) return plain;
  Ids ids;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json.at(i).is(Json::Type::kString)) {
      ids.insert(ids.end(), plain.begin(), plain.end());
    } else {
      ids.push_back(json.at(i).as_int());
    }
  }
  return ids;
}

std::shared_ptr<const Tokenizer> load(const Source& source, const std::string& name) {
  return load_tokenizer((source.tokenizers / name).string());
}

/// The tokenizer of some files of a folder, copied to a folder without tokenizer.json.
std::shared_ptr<const Tokenizer> load_files(const Source& source, const std::string& name,
                                            const std::vector<std::string>& files) {
  const test::TempFolder folder;
  for (const std::string& file : files) {
    fs::copy_file(source.tokenizers / name / file, folder / file);
  }
  return load_tokenizer(folder.path().string());
}

void expect_answers(const Source& source, const std::string& name) {
  const auto tokenizer = load(source, name);
  const std::vector<std::string> texts = read_texts(source);
  for (const Json& line : read_lines(source, name + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = ids_of(line.at("ids"), {});
    EXPECT_EQ(tokenizer->encode(texts[i], {.add_special = false}), want) << i;
    EXPECT_EQ(tokenizer->encode(texts[i]), ids_of(line.at("ids_special"), want)) << i;
    EXPECT_EQ(tokenizer->decode(want), line.string_or("decoded", texts[i])) << i;
  }
}

void expect_streams(const Source& source, const std::string& name) {
  const auto tokenizer = load(source, name);
  const std::vector<std::string> texts = read_texts(source);
  for (const Json& line : read_lines(source, name + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids ids = ids_of(line.at("ids"), {});
    if (ids.size() > 500) continue;
    StreamDecoder stream(tokenizer, false);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), line.string_or("decoded", texts[i])) << i;
  }
}

class SmallTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(SmallTokenizer, EveryString_MatchesTheReference) {
  expect_answers(small_tokenizers(), GetParam());
}

TEST_P(SmallTokenizer, Streaming_GivesTheDecodedText) {
  expect_streams(small_tokenizers(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kinds, SmallTokenizer,
                         ::testing::Values("gpt2", "bert", "llama2", "llama3", "gemma",
                                           "xlm-roberta"));

class RealTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, EveryString_MatchesTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  expect_answers(*real_tokenizers(), GetParam());
}

TEST_P(RealTokenizer, Streaming_GivesTheDecodedText) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  expect_streams(*real_tokenizers(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Published, RealTokenizer,
                         ::testing::Values("gpt2", "bert-base-uncased", "llama2", "llama3",
                                           "stories260K-tok512"));

void expect_sentencepiece(const Tokenizer& tokenizer, const Source& source,
                          const std::string& name) {
  EXPECT_EQ(tokenizer.kind(), "SentencePiece");
  const std::vector<std::string> texts = read_texts(source);
  for (const Json& line : read_lines(source, name + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = ids_of(line.at("spm"), ids_of(line.at("ids"), {}));
    // The library spells special tokens out.
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false, .parse_special = false}), want)
        << name << i;
    Ids with_begin{1};
    with_begin.insert(with_begin.end(), want.begin(), want.end());
    EXPECT_EQ(tokenizer.encode(texts[i], {.parse_special = false}), with_begin) << name << i;
    const std::string& text = line.at("spm_decoded").as_string();
    EXPECT_EQ(tokenizer.decode(want), text == "same" ? line.string_or("decoded", texts[i]) : text)
        << name << i;
  }
}

TEST(RealOlderFiles, SentencePieceModels_MatchTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  for (const std::string name : {"llama2", "stories260K-tok512"}) {
    expect_sentencepiece(*load_files(*real_tokenizers(), name, {"tokenizer.model"}),
                         *real_tokenizers(), name);
  }
}

// The older files must give the same as tokenizer.json, with and without parsing special tokens.
void expect_older_files_agree(const Tokenizer& tokenizer, const Source& source,
                              const std::string& name) {
  const std::vector<std::string> texts = read_texts(source);
  for (const Json& line : read_lines(source, name + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = ids_of(line.at("ids"), {});
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false}), want) << name << i;
    EXPECT_EQ(tokenizer.encode(texts[i]), ids_of(line.at("ids_special"), want)) << name << i;
    EXPECT_EQ(tokenizer.decode(want), line.string_or("decoded", texts[i])) << name << i;
    if (!line.has("tiktoken")) continue;
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false, .parse_special = false}),
              ids_of(line.at("tiktoken"), want))
        << name << i;
  }
}

TEST(RealOlderFiles, TiktokenRanks_MatchTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  const auto tokenizer =
      load_files(*real_tokenizers(), "llama3",
                 {"tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  expect_older_files_agree(*tokenizer, *real_tokenizers(), "llama3");
}

TEST(RealOlderFiles, VocabAndMerges_MatchTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  const auto tokenizer = load_files(*real_tokenizers(), "gpt2",
                                    {"vocab.json", "merges.txt", "special_tokens_map.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  expect_older_files_agree(*tokenizer, *real_tokenizers(), "gpt2");
}

TEST(RealOlderFiles, VocabTxt_MatchesTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  const auto tokenizer =
      load_files(*real_tokenizers(), "bert-base-uncased", {"vocab.txt", "tokenizer_config.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 30522);
  expect_older_files_agree(*tokenizer, *real_tokenizers(), "bert-base-uncased");
}

TEST(RealOlderFiles, TokenizerJsonWithoutParsingSpecials_MatchesTiktoken) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  const Source source = *real_tokenizers();
  expect_older_files_agree(*load(source, "gpt2"), source, "gpt2");
  expect_older_files_agree(*load(source, "llama3"), source, "llama3");
}

/// Writes older files with the entries of a small tokenizer.json.
class SmallOlderFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  static nlohmann::json tokenizer_json(const std::string& name) {
    return nlohmann::json::parse(
        std::ifstream(small_tokenizers().tokenizers / name / "tokenizer.json"));
  }

  /// All tokens in the order of their ids, including added ones.
  static std::vector<std::string> entries(const nlohmann::json& tokenizer) {
    std::map<int64_t, std::string> by_id;
    for (const auto& [text, id] : tokenizer["model"]["vocab"].items()) by_id[id] = text;
    for (const auto& added : tokenizer["added_tokens"]) by_id[added["id"]] = added["content"];
    std::vector<std::string> out;
    out.reserve(by_id.size());
    for (const auto& [id, text] : by_id) out.push_back(text);
    return out;
  }

  /// Those of the small GPT-2, without some tokens.
  void write_vocab_and_merges(const std::set<std::string>& without = {}) {
    const auto json = tokenizer_json("gpt2");
    nlohmann::json vocabulary;
    for (const std::string& text : entries(json)) {
      if (!without.contains(text)) vocabulary[text] = vocabulary.size();
    }
    std::string merges = "#version: 0.2\n";
    for (const auto& pair : json["model"]["merges"]) {
      merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
    }
    write("vocab.json", vocabulary.dump());
    write("merges.txt", merges);
  }

  void write_class(const std::string& name, nlohmann::json config = nlohmann::json::object()) {
    config["tokenizer_class"] = name;
    write("tokenizer_config.json", config.dump());
  }

  test::TempFolder folder_;
};

TEST_F(SmallOlderFiles, SentencePieceModel_MatchesTheReference) {
  const Source source = small_tokenizers();
  expect_sentencepiece(*load_files(source, "llama2", {"tokenizer.model"}), source, "llama2");
}

TEST_F(SmallOlderFiles, VocabAndMerges_MatchTheReference) {
  write_vocab_and_merges();
  write("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})");
  const auto tokenizer = load_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), 2000);
  expect_older_files_agree(*tokenizer, small_tokenizers(), "gpt2");
}

TEST_F(SmallOlderFiles, ClassesLikeGpt2_MatchTheReference) {
  write_vocab_and_merges();
  for (const char* name : {"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer"}) {
    write_class(name);
    const auto tokenizer = load_tokenizer(folder_.path().string());
    expect_older_files_agree(*tokenizer, small_tokenizers(), "gpt2");
    EXPECT_EQ(tokenizer->special().bos, 1999);
    EXPECT_EQ(tokenizer->special().eos, 1999);
    EXPECT_EQ(tokenizer->encode("ab <|endoftext|>"), (Ids{64, 65, 220, 1999}));
    write_class(name, {{"add_bos_token", true}});
    EXPECT_EQ(load_tokenizer(folder_.path().string())->encode("ab <|endoftext|>"),
              (Ids{1999, 64, 65, 220, 1999}));
  }
}

TEST_F(SmallOlderFiles, Qwen2Classes_MatchTheReference) {
  const Source source = small_tokenizers();
  std::map<size_t, Ids> different;
  for (const auto& family :
       nlohmann::json::parse(std::ifstream(source.answers / "families.json"))) {
    if (family["name"] != "qwen2" || family["base"] != "gpt2") continue;
    for (const auto& row : family["different"]) different[row[0]] = row[1].get<Ids>();
  }
  EXPECT_GT(different.size(), 50U);
  const std::vector<std::string> texts = read_texts(source);
  write_vocab_and_merges();
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast"}) {
    write_class(name, {{"add_prefix_space", false}, {"bos_token", nullptr}});
    const auto tokenizer = load_tokenizer(folder_.path().string());
    EXPECT_EQ(tokenizer->special().eos, 1999);
    EXPECT_EQ(tokenizer->special().pad, 1999);
    EXPECT_EQ(tokenizer->special().bos, std::nullopt);
    for (const Json& line : read_lines(source, "gpt2.jsonl")) {
      const auto i = static_cast<size_t>(line.at("i").as_int());
      const Ids want = different.contains(i) ? different.at(i) : ids_of(line.at("ids"), {});
      EXPECT_EQ(tokenizer->encode(texts[i]), want) << name << ": " << i;
    }
  }
  write_class("Qwen2Tokenizer", {{"eos_token", nullptr}});
  EXPECT_EQ(load_tokenizer(folder_.path().string())->special().eos, std::nullopt);
  write_class("Qwen2Tokenizer", {{"add_prefix_space", true}});
  EXPECT_THAT(test::thrown_by([&] { load_tokenizer(folder_.path().string()); }).what(),
              HasSubstr("expected false for Qwen2Tokenizer"));
}

// The ids are those of transformers 5.19.
TEST_F(SmallOlderFiles, SpecialTokensWithoutIds_GetTheNextOnes) {
  write_vocab_and_merges({"<|endoftext|>"});
  write_class("Qwen2Tokenizer", {{"eos_token", "<|im_end|>"}});
  const auto tokenizer = load_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), 2001);
  EXPECT_EQ(tokenizer->encode("a<|im_end|>b<|endoftext|>"), (Ids{64, 1999, 65, 2000}));
  write_class("GPT2Tokenizer");
  EXPECT_EQ(load_tokenizer(folder_.path().string())->encode("ab <|endoftext|>"),
            (Ids{64, 65, 220, 1999}));
}

TEST_F(SmallOlderFiles, OtherClasses_AreRefusedByName) {
  const auto problem = [&](const char* name) {
    write_class(name);
    return std::string(test::thrown_by([&] { load_tokenizer(folder_.path().string()); }).what());
  };
  write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n");
  for (const char* name : {"GPT2Tokenizer", "RoCBertTokenizer", "PreTrainedTokenizerFast"}) {
    const std::string message = problem(name);
    EXPECT_THAT(message, HasSubstr(str("tokenizer_config.json: \"tokenizer_class\" is \"", name)));
    EXPECT_THAT(message,
                HasSubstr("whose vocab.txt Cleave reads without tokenizer.json, expected "
                          "BertTokenizer or one that does the same; write tokenizer.json"));
  }
  write_vocab_and_merges();
  for (const char* name : {"BartTokenizer", "BertTokenizer", "DebertaTokenizerFast"}) {
    const std::string message = problem(name);
    EXPECT_THAT(message, HasSubstr(str("tokenizer_config.json: \"tokenizer_class\" is \"", name)));
    EXPECT_THAT(message, HasSubstr("whose vocab.json and merges.txt Cleave reads without "
                                   "tokenizer.json, expected GPT2Tokenizer, CodeGenTokenizer, "
                                   "Qwen2Tokenizer or RobertaTokenizer; write tokenizer.json "
                                   "with transformers: "
                                   "AutoTokenizer.from_pretrained('" +
                                   folder_.path().string() + "')"));
  }
}

TEST_F(SmallOlderFiles, VocabTxt_MatchesTheReference) {
  std::string vocabulary;
  for (const std::string& text : entries(tokenizer_json("bert"))) vocabulary += text + "\n";
  write("vocab.txt", vocabulary);
  for (const char* name : {"BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"}) {
    write_class(name, {{"do_lower_case", true}});
    const auto tokenizer = load_tokenizer(folder_.path().string());
    EXPECT_EQ(tokenizer->vocab_size(), 2000);
    expect_older_files_agree(*tokenizer, small_tokenizers(), "bert");
  }
}

// The model's vocabulary is that of `base`. Strings that are not listed have the ids of `base`.
void expect_family(const Source& source, const nlohmann::json& family,
                   const std::vector<std::string>& texts) {
  const std::string base = family["base"];
  nlohmann::json whole =
      nlohmann::json::parse(std::ifstream(source.tokenizers / base / "tokenizer.json"));
  for (const char* const key : {"normalizer", "pre_tokenizer"}) whole[key] = family[key];
  whole["model"]["ignore_merges"] = false;
  const auto tokenizer = make_pipeline(read_pipeline(Json::parse(whole.dump(), base)));
  std::map<size_t, Ids> different;
  for (const auto& row : family["different"]) different[row[0]] = row[1].get<Ids>();
  for (const Json& line : read_lines(source, base + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = different.contains(i) ? different.at(i) : ids_of(line.at("ids"), {});
    EXPECT_EQ(tokenizer->encode(texts[i], {.add_special = false}), want)
        << family["name"] << " with " << base << ": " << i;
  }
}

TEST(SmallFamilies, EveryString_MatchesTheReference) {
  const Source source = small_tokenizers();
  const auto families = nlohmann::json::parse(std::ifstream(source.answers / "families.json"));
  ASSERT_EQ(families.size(), 12U);
  const std::vector<std::string> texts = read_texts(source);
  for (const auto& family : families) expect_family(source, family, texts);
}

std::vector<std::string> strings_of(const Json& list) {
  std::vector<std::string> out;
  for (size_t i = 0; i < list.size(); ++i) out.push_back(list.at(i).as_string());
  return out;
}

BatchOptions batch_options(const Json& entry) {
  const Json json = entry.at("options");
  BatchOptions options;
  options.pad_left = entry.at("padding_side").as_string() == "left";
  if (json.has("padding")) {
    options.padding =
        json.at("padding").is(Json::Type::kString) ? Padding::kMaxLength : Padding::kLongest;
  }
  if (json.has("truncation")) {
    options.truncation = json.at("truncation").is(Json::Type::kString) ? Truncation::kOnlySecond
                                                                       : Truncation::kLongestFirst;
  }
  options.max_length = json.int_or("max_length", 0);
  return options;
}

void expect_batches(const Source& source) {
  const Json golden = Json::parse_file((source.answers / "batch.json").string());
  const Json entries = golden.at("batch");
  ASSERT_EQ(entries.size(), 9U);
  for (size_t i = 0; i < entries.size(); ++i) {
    const Json entry = entries.at(i);
    const auto tokenizer = load(source, entry.at("tokenizer").as_string());
    const std::vector<std::string> texts = strings_of(entry.at("texts"));
    std::vector<std::string> pairs;
    if (entry.has("pairs")) pairs = strings_of(entry.at("pairs"));
    const EncodedBatch got = encode_batch(*tokenizer, texts, pairs, batch_options(entry));
    const Json want = entry.at("expect");
    for (size_t k = 0; k < texts.size(); ++k) {
      EXPECT_EQ(got.input_ids[k], ids_of(want.at("input_ids").at(k), {})) << entry.dump();
      EXPECT_EQ(got.attention_mask[k], ids_of(want.at("attention_mask").at(k), {}));
      if (!want.has("token_type_ids")) continue;
      EXPECT_EQ(got.token_type_ids[k], ids_of(want.at("token_type_ids").at(k), {}));
    }
  }
}

void expect_prefixes(const Source& source) {
  const Json golden = Json::parse_file((source.answers / "batch.json").string());
  const Json entries = golden.at("prefix_decode");
  ASSERT_GE(entries.size(), 8U);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto tokenizer = load(source, entries.at(i).at("tokenizer").as_string());
    const Ids ids = ids_of(entries.at(i).at("ids"), {});
    StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (size_t k = 0; k < ids.size(); ++k) {
      const std::string& want = entries.at(i).at("prefix_decoded").at(k).as_string();
      EXPECT_EQ(tokenizer->decode(std::span(ids).first(k + 1)), want);
      streamed += stream.push(ids[k]);
      EXPECT_EQ(streamed.find("\xEF\xBF\xBD"), std::string::npos);
      EXPECT_TRUE(want.starts_with(streamed)) << want;
      if (want.ends_with("\xEF\xBF\xBD")) continue;
      EXPECT_EQ(streamed, want);
    }
  }
}

TEST(SmallBatches, PaddingAndTruncation_MatchTheReference) {
  expect_batches(small_tokenizers());
}

TEST(SmallBatches, PrefixesOfIds_MatchTheReferenceAndStreamCompleteCharacters) {
  expect_prefixes(small_tokenizers());
}

TEST(RealBatches, PaddingAndTruncation_MatchTheReference) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  expect_batches(*real_tokenizers());
}

TEST(RealBatches, PrefixesOfIds_MatchTheReferenceAndStreamCompleteCharacters) {
  SKIP_WITHOUT_REAL_TOKENIZERS();
  expect_prefixes(*real_tokenizers());
}

// Oracle: the same library on small vocabularies, tests/golden/tokenizer/pipelines.json.

Ids ids_of(const Json& list) {
  Ids ids;
  for (size_t i = 0; i < list.size(); ++i) ids.push_back(list.at(i).as_int());
  return ids;
}

/// The tokenizer.json of a golden entry, with its vocabulary inserted.
std::string whole_text(const Json& golden, const Json& entry) {
  const Json model = entry.at("tokenizer").at("model");
  const auto number = static_cast<size_t>(model.at("vocab").as_int(0));
  const Json vocabulary = golden.at("vocabularies").at(number);
  std::string text = entry.at("tokenizer").dump();
  const std::string from = str("\"vocab\":", number);
  std::string to = "\"vocab\":" + vocabulary.at("vocab").dump();
  if (vocabulary.has("merges")) to += ",\"merges\":" + vocabulary.at("merges").dump();
  return text.replace(text.find(from), from.size(), to);
}

TEST(Pipeline, EveryKindOfStep_MatchesTheReference) {
  const Json golden = Json::parse_file(test::source_file("tests/golden/tokenizer/pipelines.json"));
  const Json entries = golden.at("pipelines");
  ASSERT_EQ(entries.size(), 83U);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = entries.at(i).at("name").as_string();
    const auto tokenizer =
        make_pipeline(read_pipeline(Json::parse(whole_text(golden, entries.at(i)), name)));
    const Json cases = entries.at(i).at("cases");
    for (size_t k = 0; k < cases.size(); ++k) {
      const Json one = golden.at("answers").at(static_cast<size_t>(cases.at(k).as_int()));
      const auto number = static_cast<size_t>(one.at("text").as_int(0));
      const std::string& text = golden.at("texts").at(number).as_string();
      const Ids ids = ids_of(one.at("ids"));
      const Ids special = one.has("ids_special") ? ids_of(one.at("ids_special")) : ids;
      const std::string& decoded = one.at("decoded").as_string();
      EXPECT_EQ(tokenizer->encode(text, {.add_special = false}), ids) << name << ": " << text;
      EXPECT_EQ(tokenizer->encode(text), special) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids), decoded) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(special, true), one.string_or("decoded_plain", decoded))
          << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace cleave::golden_test
