#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// The files beside the vocabulary: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and, for older vocabularies, config.json.
namespace cleave::folder_files_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int64_t>;

// Oracle: AutoTokenizer of transformers 5.19 for these folders: the ids of a text, their text
// without special tokens, the number of ids and those of bos, eos, pad, unk, cls, sep and mask.
// "form": the small tokenizer's tokenizer.json, vocab.txt, or vocab.json with merges.txt.
constexpr const char* kFolders = R"json([
{"tokenizer": "llama3", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast",
 "pad_token": "<pad>", "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}},
 "text": "a<|im_start|>b <pad>c<|im_end|>", "ids": [1998, 64, 2002, 65, 220, 2001, 66, 2000],
 "plain_text": "ab c", "size": 2003, "roles": [null, 2000, 2001, null, null, null, null]},
{"tokenizer": "gpt2", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer", "image_token": "<img>",
 "extra_special_tokens": {"fun": "<fun>"}}}, "text": "a<img>b<fun>c<x>", "ids": [64, 2000, 65,
 2001, 66, 27, 87, 29], "plain_text": "abc<x>", "size": 2002, "roles": [1999, 1999, null, 1999,
 null, null, null]},
{"tokenizer": "gpt2", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer",
 "added_tokens_decoder": {"1999": {"content": "<|endoftext|>", "single_word": false,
 "lstrip": false, "rstrip": true, "normalized": false, "special": true},
 "2001": {"content": "<fun>", "special": false, "lstrip": true, "rstrip": true},
 "2000": {"content": "<|im_start|>", "special": true}}}},
 "text": "a<|im_start|>b <fun> c <|endoftext|>", "ids": [64, 2000, 65, 2001, 66, 220, 1999],
 "plain_text": "ab<fun>c ", "size": 2002, "roles": [1999, 1999, null, 1999, null, null, null]},
{"tokenizer": "llama3", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast",
 "added_tokens_decoder": {"1998": {"content": "<|begin_of_text|>", "single_word": false,
 "lstrip": false, "rstrip": false, "normalized": false, "special": true},
 "1999": {"content": "<|end_of_text|>", "single_word": false, "lstrip": false, "rstrip": false,
 "normalized": false, "special": true}, "2007": {"content": "<|im_start|>", "special": true}}}},
 "text": "a<|im_start|>b", "ids": [1998, 64, 2000, 65], "plain_text": "ab", "size": 2001,
 "roles": [null, null, null, null, null, null, null]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer", "pad_token": "[x]"},
 "special_tokens_map": {"pad_token": "[pad]", "eos_token": {"content": "<start>", "lstrip": false,
 "rstrip": false, "normalized": false, "single_word": false}}, "added_tokens": {"<start>": 2000,
 "<fun>": 2001, "[pad]": 2002}}, "text": "a<start>b<FUN> <fun>[pad]", "ids": [2, 180, 2000, 181,
 2001, 2001, 2002, 3], "plain_text": "a b <fun> <fun>", "size": 2003, "roles": [null, 2000, 2002,
 1, 2, 3, 4]},
{"tokenizer": "gpt2", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer",
 "added_tokens_decoder": {"1999": {"content": "<|endoftext|>", "single_word": false,
 "lstrip": false, "rstrip": false, "normalized": false, "special": true}}, "pad_token": "[x]"},
 "special_tokens_map": {"pad_token": "<y>"}, "added_tokens": {"<y>": 2000}}, "text": "a[x]<y>b",
 "ids": [64, 2000, 27, 88, 29, 65], "plain_text": "a<y>b", "size": 2001, "roles": [1999, 1999,
 2000, 1999, null, null, null]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer", "do_lower_case": false}},
 "text": "Hello Caf\u00e9 \u4f60\u597d", "ids": [2, 1, 1, 286, 288, 3],
 "plain_text": "\u4f60 \u597d", "size": 2000, "roles": [null, null, 0, 1, 2, 3, 4]},
{"tokenizer": "bert", "form": "json", "files": {"tokenizer_config": {"do_lower_case": false}},
 "text": "Hello Caf\u00e9 \u4f60\u597d", "ids": [2, 1, 1, 286, 288, 3],
 "plain_text": "\u4f60 \u597d", "size": 2000, "roles": [null, null, 0, 1, 2, 3, 4]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "DistilBertTokenizerFast",
 "strip_accents": false}}, "text": "Hello Caf\u00e9 \u4f60\u597d", "ids": [2, 549, 1, 286, 288,
 3], "plain_text": "hello \u4f60 \u597d", "size": 2000, "roles": [null, null, 0, 1, 2, 3, 4]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer",
 "tokenize_chinese_chars": false}}, "text": "ab\u4f60\u597d", "ids": [2, 180, 36, 141, 143, 3],
 "plain_text": "ab\u4f60\u597d", "size": 2000, "roles": [null, null, 0, 1, 2, 3, 4]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer",
 "split_special_tokens": true}}, "text": "Hello [MASK]", "ids": [2, 549, 177, 347, 53, 45, 178,
 3], "plain_text": "hello [ mask ]", "size": 2000, "roles": [null, null, 0, 1, 2, 3, 4]},
{"tokenizer": "bert", "form": "json",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer", "mask_token": "<mask>",
 "pad_token": "the"}}, "text": "Hello <mask>[PAD]", "ids": [2, 549, 2000, 0, 3],
 "plain_text": "hello", "size": 2001, "roles": [null, null, 384, 1, 2, 3, 2000]},
{"tokenizer": "bert", "form": "txt",
 "files": {"tokenizer_config": {"tokenizer_class": "BertTokenizer", "pad_token": "<PAD>"},
 "special_tokens_map": {"extra_special_tokens": ["<|im_end|>"]}, "added_tokens": {"<fun>": 2000}},
 "text": "Hello <PAD> <|im_end|> <fun> [MASK]", "ids": [2, 549, 2001, 2002, 2000, 4, 3],
 "plain_text": "hello <fun>", "size": 2003, "roles": [null, null, 2001, 1, 2, 3, 4]},
{"tokenizer": "gpt2", "form": "bpe", "files": {"config": {"model_type": "roberta"},
 "special_tokens_map": {"mask_token": {"content": "<mask>", "lstrip": true, "rstrip": false,
 "normalized": false, "single_word": false}}}, "text": "Hi <mask> x</s>", "ids": [2000, 39, 72,
 2004, 701, 2001, 2001], "plain_text": "Hi x", "size": 2005, "roles": [2000, 2001, 2003, 2002,
 2000, 2001, 2004]},
{"tokenizer": "gpt2", "form": "bpe",
 "files": {"tokenizer_config": {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true}},
 "text": "Hi <mask>", "ids": [2000, 361, 72, 220, 2004, 2001], "plain_text": " Hi ", "size": 2005,
 "roles": [2000, 2001, 2003, 2002, 2000, 2001, 2004]},
{"tokenizer": "gpt2", "form": "bpe", "files": {"config": {"model_type": "qwen3"}},
 "text": "don't 123", "ids": [67, 259, 561, 220, 16, 17, 18], "plain_text": "don't 123",
 "size": 2000, "roles": [null, 1999, 1999, 1999, null, null, null]},
{"tokenizer": "gpt2", "form": "bpe", "files": {"config": {"model_type": "gpt2"},
 "tokenizer_config": {"add_bos_token": true, "add_eos_token": true, "pad_token": "[PAD]"}},
 "text": "don't 123", "ids": [1999, 67, 259, 561, 428, 1999], "plain_text": "don't 123",
 "size": 2001, "roles": [1999, 1999, 2000, 1999, null, null, null]}
])json";

fs::path small_json(const std::string& name) {
  return test::source_file("tests/golden/tokenizer/small/" + name + "/tokenizer.json");
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

/// Writes vocab.txt, or vocab.json and merges.txt, with the entries of a tokenizer.json.
void write_older(const fs::path& folder, const std::string& name, bool is_text) {
  const json whole = json::parse(std::ifstream(small_json(name)));
  std::map<int64_t, std::string> by_id;
  for (const auto& [token, id] : whole["model"]["vocab"].items()) by_id[id] = token;
  for (const auto& added : whole["added_tokens"]) by_id[added["id"]] = added["content"];
  std::string lines;
  json vocabulary;
  for (const auto& [id, token] : by_id) {
    lines += token + "\n";
    vocabulary[token] = id;
  }
  if (is_text) return write(folder / "vocab.txt", lines);
  write(folder / "vocab.json", vocabulary.dump());
  std::string merges = "#version: 0.2\n";
  for (const auto& pair : whole["model"]["merges"]) {
    merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
  }
  write(folder / "merges.txt", merges);
}

void write_files(const fs::path& folder, const json& row) {
  const std::string form = row["form"], name = row["tokenizer"];
  if (form == "json") {
    fs::copy_file(small_json(name), folder / "tokenizer.json");
  } else {
    write_older(folder, name, form == "txt");
  }
  for (const auto& [file, content] : row["files"].items()) {
    write(folder / (file + ".json"), content.dump());
  }
}

json roles_of(const Tokenizer& tokenizer) {
  const SpecialIds& ids = tokenizer.special();
  json out = json::array();
  for (const auto& id : {ids.bos, ids.eos, ids.pad, ids.unk, ids.cls, ids.sep, ids.mask}) {
    out.push_back(id ? json(*id) : json());
  }
  return out;
}

/// What transformers calls None, and Cleave finds by the usual names of special tokens.
json with_nothing_for(const json& want, json roles) {
  for (size_t i = 0; i < roles.size(); ++i) {
    if (want[i].is_null()) roles[i] = nullptr;
  }
  return roles;
}

TEST(TokenizerFolder, FilesBesideTheVocabulary_CountAsInTransformers) {
  const json rows = json::parse(kFolders);
  for (const json& row : rows) {
    const test::TempFolder folder;
    write_files(folder.path(), row);
    const auto tokenizer = load_tokenizer(folder.path().string());
    const Ids ids = tokenizer->encode(row["text"].get<std::string>());
    EXPECT_EQ(ids, row["ids"].get<Ids>()) << row.dump();
    EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/true), row["plain_text"].get<std::string>())
        << row.dump();
    EXPECT_EQ(tokenizer->vocab_size(), row["size"].get<int64_t>()) << row.dump();
    const json roles = roles_of(*tokenizer), want = row["roles"];
    const bool has_class = row["files"].contains("tokenizer_config") &&
                           row["files"]["tokenizer_config"].contains("tokenizer_class") &&
                           row["tokenizer"] != "llama3";
    EXPECT_EQ(has_class ? roles : with_nothing_for(want, roles), want) << row.dump();
  }
}

TEST(TokenizerFolder, PrefixThatTheFilesDisagreeOn_IsRefused) {
  const test::TempFolder folder;
  fs::copy_file(small_json("gpt2"), folder / "tokenizer.json");
  const auto load_with = [&](const json& config) {
    write(folder / "tokenizer_config.json", config.dump());
    return load_tokenizer(folder.path().string());
  };
  EXPECT_THAT(
      test::thrown_by([&] {
        load_with({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}});
      }).what(),
      ::testing::HasSubstr("\"add_prefix_space\" is true; the ByteLevel step of tokenizer.json has "
                           "false"));
  // transformers ignores it for a class that has no steps of its own.
  const auto other =
      load_with({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_prefix_space", true}});
  EXPECT_EQ(
      other->encode("ab"),
      load_with({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", false}})->encode("ab"));
}

}  // namespace
}  // namespace cleave::folder_files_test
