#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/text/json.h"
#include "cleave/tokenizer/batch.h"
#include "cleave/tokenizer/stream_decoder.h"
#include "cleave/tokenizer/tokenizer.h"

// Oracle: ids and texts from the reference libraries, stored in goldens/tokenizers.
namespace cleave {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

std::optional<fs::path> data_folder() {
  const char* folder = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
  if (folder == nullptr || !fs::is_directory(fs::path(folder) / "goldens" / "tokenizers")) {
    return std::nullopt;
  }
  return fs::path(folder);
}

#define SKIP_WITHOUT_DATA()                                                \
  if (!data_folder()) {                                                    \
    GTEST_SKIP() << "CLEAVE_DATA names no folder with goldens/tokenizers"; \
  }

std::vector<Json> read_lines(const std::string& name) {
  const fs::path path = *data_folder() / "goldens" / "tokenizers" / name;
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line, name));
  EXPECT_EQ(lines.size(), 300U) << path;
  return lines;
}

std::vector<std::string> read_texts() {
  std::vector<std::string> texts;
  for (const Json& line : read_lines("strings.jsonl")) {
    texts.push_back(line.at("text").as_string());
  }
  return texts;
}

/// The ids of a list in which the word "...ids" stands for `plain`; "same" is `plain` itself.
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

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  return load_tokenizer((*data_folder() / "tokenizers" / name).string());
}

/// The tokenizer of some files of a folder alone, copied to where no tokenizer.json lies.
std::shared_ptr<const Tokenizer> load_files(const std::string& name,
                                            const std::vector<std::string>& files) {
  const fs::path to = fs::path(::testing::TempDir()) / ("cleave_" + name + "_" + files.front());
  fs::remove_all(to);
  fs::create_directories(to);
  for (const std::string& file : files) {
    fs::copy_file(*data_folder() / "tokenizers" / name / file, to / file);
  }
  return load_tokenizer(to.string());
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, EveryString_GivesTheReferencesIdsAndText) {
  SKIP_WITHOUT_DATA();
  const auto tokenizer = load(GetParam());
  const std::vector<std::string> texts = read_texts();
  for (const Json& line : read_lines(std::string(GetParam()) + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = ids_of(line.at("ids"), {});
    EXPECT_EQ(tokenizer->encode(texts[i], {.add_special = false}), want) << i;
    EXPECT_EQ(tokenizer->encode(texts[i]), ids_of(line.at("ids_special"), want)) << i;
    EXPECT_EQ(tokenizer->decode(want), line.at("decoded").as_string()) << i;
  }
}

TEST_P(Golden, Streaming_JoinsToTheDecodedText) {
  SKIP_WITHOUT_DATA();
  const auto tokenizer = load(GetParam());
  for (const Json& line : read_lines(std::string(GetParam()) + ".jsonl")) {
    const Ids ids = ids_of(line.at("ids"), {});
    if (ids.size() > 500) continue;
    StreamDecoder stream(tokenizer, false);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), line.at("decoded").as_string()) << line.at("i").as_int();
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden,
                         ::testing::Values("gpt2", "bert-base-uncased", "llama2", "llama3",
                                           "stories260K-tok512"));

TEST(Golden, SentencePieceModels_GiveTheLibrarysIdsAndText) {
  SKIP_WITHOUT_DATA();
  const std::vector<std::string> texts = read_texts();
  for (const std::string name : {"llama2", "stories260K-tok512"}) {
    const auto tokenizer = load_files(name, {"tokenizer.model"});
    EXPECT_EQ(tokenizer->kind(), "SentencePiece");
    for (const Json& line : read_lines(name + ".jsonl")) {
      const auto i = static_cast<size_t>(line.at("i").as_int());
      const Ids want = ids_of(line.at("spm"), ids_of(line.at("ids"), {}));
      EXPECT_EQ(tokenizer->encode(texts[i], {.add_special = false}), want) << name << i;
      Ids with_begin{1};
      with_begin.insert(with_begin.end(), want.begin(), want.end());
      EXPECT_EQ(tokenizer->encode(texts[i]), with_begin) << name << i;
      const std::string& text = line.at("spm_decoded").as_string();
      EXPECT_EQ(tokenizer->decode(want), text == "same" ? line.at("decoded").as_string() : text)
          << name << i;
    }
  }
}

// The older files give what tokenizer.json gives; special tokens in the text may be left as text.
void expect_older_files_agree(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<std::string> texts = read_texts();
  for (const Json& line : read_lines(name + ".jsonl")) {
    const auto i = static_cast<size_t>(line.at("i").as_int());
    const Ids want = ids_of(line.at("ids"), {});
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false}), want) << name << i;
    EXPECT_EQ(tokenizer.encode(texts[i]), ids_of(line.at("ids_special"), want)) << name << i;
    EXPECT_EQ(tokenizer.decode(want), line.at("decoded").as_string()) << name << i;
    if (!line.has("tiktoken")) continue;
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false, .parse_special = false}),
              ids_of(line.at("tiktoken"), want))
        << name << i;
  }
}

TEST(Golden, TiktokenRanks_GiveTheLibrarysIds) {
  SKIP_WITHOUT_DATA();
  const auto tokenizer =
      load_files("llama3", {"tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  expect_older_files_agree(*tokenizer, "llama3");
}

TEST(Golden, VocabAndMerges_GiveTheLibrarysIds) {
  SKIP_WITHOUT_DATA();
  const auto tokenizer =
      load_files("gpt2", {"vocab.json", "merges.txt", "special_tokens_map.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  expect_older_files_agree(*tokenizer, "gpt2");
}

TEST(Golden, VocabTxt_GivesTheLibrarysIds) {
  SKIP_WITHOUT_DATA();
  const auto tokenizer = load_files("bert-base-uncased", {"vocab.txt", "tokenizer_config.json"});
  EXPECT_EQ(tokenizer->vocab_size(), 30522);
  expect_older_files_agree(*tokenizer, "bert-base-uncased");
}

TEST(Golden, TokenizerJsonWithoutParsingSpecials_GivesTiktokensIds) {
  SKIP_WITHOUT_DATA();
  expect_older_files_agree(*load("gpt2"), "gpt2");
  expect_older_files_agree(*load("llama3"), "llama3");
}

std::vector<std::string> strings_of(const Json& list) {
  std::vector<std::string> out;
  for (size_t i = 0; i < list.size(); ++i) out.push_back(list.at(i).as_string());
  return out;
}

BatchOptions batch_options(const Json& row) {
  const Json json = row.at("options");
  BatchOptions options;
  options.pad_left = row.at("padding_side").as_string() == "left";
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

TEST(Golden, Batches_ArePaddedAndTruncatedAsByTheReference) {
  SKIP_WITHOUT_DATA();
  const Json golden =
      Json::parse_file((*data_folder() / "goldens" / "tokenizers" / "batch.json").string());
  const Json rows = golden.at("batch");
  ASSERT_EQ(rows.size(), 9U);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json row = rows.at(i);
    const auto tokenizer = load(row.at("tokenizer").as_string());
    const std::vector<std::string> texts = strings_of(row.at("texts"));
    std::vector<std::string> pairs;
    if (row.has("pairs")) pairs = strings_of(row.at("pairs"));
    const EncodedBatch got = encode_batch(*tokenizer, texts, pairs, batch_options(row));
    const Json want = row.at("expect");
    for (size_t k = 0; k < texts.size(); ++k) {
      EXPECT_EQ(got.input_ids[k], ids_of(want.at("input_ids").at(k), {})) << row.dump();
      EXPECT_EQ(got.attention_mask[k], ids_of(want.at("attention_mask").at(k), {}));
      if (!want.has("token_type_ids")) continue;
      EXPECT_EQ(got.token_type_ids[k], ids_of(want.at("token_type_ids").at(k), {}));
    }
  }
}

TEST(Golden, PrefixesOfIds_DecodeAsByTheReferenceAndStreamWithoutHalfCharacters) {
  SKIP_WITHOUT_DATA();
  const Json golden =
      Json::parse_file((*data_folder() / "goldens" / "tokenizers" / "batch.json").string());
  const Json rows = golden.at("prefix_decode");
  ASSERT_EQ(rows.size(), 8U);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto tokenizer = load(rows.at(i).at("tokenizer").as_string());
    const Ids ids = ids_of(rows.at(i).at("ids"), {});
    StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (size_t k = 0; k < ids.size(); ++k) {
      const std::string& want = rows.at(i).at("prefix_decoded").at(k).as_string();
      EXPECT_EQ(tokenizer->decode(std::span(ids).first(k + 1)), want);
      streamed += stream.push(ids[k]);
      EXPECT_EQ(streamed.find("\xEF\xBF\xBD"), std::string::npos);
      EXPECT_TRUE(want.starts_with(streamed)) << want;
      if (want.ends_with("\xEF\xBF\xBD")) continue;
      EXPECT_EQ(streamed, want);
    }
  }
}

}  // namespace
}  // namespace cleave
