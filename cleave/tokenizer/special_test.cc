#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace cleave::special_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

/// Ids of bos, eos, pad, unk, cls, sep and mask; -1 for none.
Ids roles_of(const std::string& name, const std::string& config) {
  const test::TempFolder folder;
  fs::copy_file(test::source_file("tests/golden/tokenizer/small/" + name + "/tokenizer.json"),
                folder / "tokenizer.json");
  std::ofstream(folder / "tokenizer_config.json") << config;
  const SpecialIds ids = load_tokenizer(folder.path().string())->special();
  Ids out;
  for (const auto& id : {ids.bos, ids.eos, ids.pad, ids.unk, ids.cls, ids.sep, ids.mask}) {
    out.push_back(id.value_or(-1));
  }
  return out;
}

// Oracle: AutoTokenizer of transformers 5.19 for the same folders.
TEST(SpecialTokens, RolesThatTheFilesDoNotMention_AreThoseOfTheClass) {
  EXPECT_EQ(roles_of("llama2", R"({"tokenizer_class": "LlamaTokenizer", "pad_token": "<unk>"})"),
            (Ids{1, 2, 0, 0, -1, -1, -1}));
  EXPECT_EQ(roles_of("llama2", R"({"tokenizer_class": "LlamaTokenizerFast", "eos_token": null,
                                   "pad_token": "<unk>"})"),
            (Ids{1, -1, 0, 0, -1, -1, -1}));
  EXPECT_EQ(roles_of("llama2", R"({"tokenizer_class": "LlamaTokenizer", "eos_token": null})"),
            (Ids{1, -1, -1, 0, -1, -1, -1}));
  EXPECT_EQ(
      roles_of("gpt2", R"({"tokenizer_class": "GPT2Tokenizer", "pad_token": "<|endoftext|>"})"),
      (Ids{1999, 1999, 1999, 1999, -1, -1, -1}));
  EXPECT_EQ(
      roles_of("gpt2", R"({"tokenizer_class": "Qwen2Tokenizer", "unk_token": "<|endoftext|>"})"),
      (Ids{-1, 1999, 1999, 1999, -1, -1, -1}));
  EXPECT_EQ(roles_of("bert", R"({"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"})"),
            (Ids{-1, -1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(roles_of("gemma", R"({"tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>"})"),
            (Ids{2, 1, 0, 3, -1, -1, 4}));
}

// A class without defaults has only the roles of the files, and the unknown token of the model.
TEST(SpecialTokens, RolesOfAClassWithoutDefaults_AreThoseOfTheFiles) {
  EXPECT_EQ(roles_of("llama2", R"({"tokenizer_class": "PreTrainedTokenizerFast",
                                   "pad_token": "<unk>"})"),
            (Ids{-1, -1, 0, 0, -1, -1, -1}));
  EXPECT_EQ(roles_of("llama2", R"({"pad_token": "<unk>"})"), (Ids{-1, -1, 0, 0, -1, -1, -1}));
}

}  // namespace
}  // namespace cleave::special_test
