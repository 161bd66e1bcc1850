#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/text/json.h"
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

// Oracle: AutoTokenizer of transformers for the same folders, tests/golden/tokenizer/special.json.
TEST(SpecialTokens, RolesThatTheFilesDoNotMention_AreThoseOfTheClass) {
  const Json folders = Json::parse_file(test::source_file("tests/golden/tokenizer/special.json"));
  ASSERT_GT(folders.size(), 0U);
  for (size_t i = 0; i < folders.size(); ++i) {
    const Json folder = folders.at(i), ids = folder.at("ids");
    Ids want;
    for (size_t role = 0; role < ids.size(); ++role) {
      const Json id = ids.at(role);
      want.push_back(id.is(Json::Type::kNull) ? -1 : id.as_int());
    }
    EXPECT_EQ(roles_of(folder.at("tokenizer").as_string(), folder.at("config").dump()), want)
        << folder.dump();
  }
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
