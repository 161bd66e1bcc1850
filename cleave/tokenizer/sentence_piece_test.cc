#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

// Oracle: transformers' LlamaTokenizer on the same folders, tests/golden/tokenizer/added.json.
namespace cleave::sentence_piece_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;
using nlohmann::json;

/// A folder with the small tokenizer.model and other files.
class Folder {
 public:
  explicit Folder(const json& files) {
    fs::copy_file(test::source_file("tests/golden/tokenizer/small/llama2/tokenizer.model"),
                  folder_ / "tokenizer.model");
    for (const auto& [name, content] : files.items()) write(name, content.dump());
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  [[nodiscard]] std::shared_ptr<const Tokenizer> load() const {
    return load_tokenizer(folder_.path().string());
  }

 private:
  test::TempFolder folder_;
};

std::optional<int64_t> id_or_nothing(const json& id) {
  if (id.is_null()) return std::nullopt;
  return id.get<int64_t>();
}

json golden_folders() {
  return json::parse(std::ifstream(test::source_file("tests/golden/tokenizer/added.json")));
}

TEST(SentencePieceFolders, SpecialAndAddedTokens_MatchTheReference) {
  const json folders = golden_folders();
  ASSERT_EQ(folders.size(), 14U);
  for (const json& golden : folders) {
    const Folder folder(golden["files"]);
    const auto tokenizer = folder.load();
    const std::string name = golden["name"];
    EXPECT_EQ(tokenizer->kind(), "SentencePiece");
    EXPECT_EQ(tokenizer->vocab_size(), golden["size"].get<int64_t>()) << name;
    EXPECT_EQ(tokenizer->special().bos, id_or_nothing(golden["special"]["bos"])) << name;
    EXPECT_EQ(tokenizer->special().eos, id_or_nothing(golden["special"]["eos"])) << name;
    EXPECT_EQ(tokenizer->special().pad, id_or_nothing(golden["special"]["pad"])) << name;
    EXPECT_EQ(tokenizer->special().unk, id_or_nothing(golden["special"]["unk"])) << name;
    for (const json& one : golden["cases"]) {
      const std::string text = one["text"];
      const auto ids = one["ids"].get<Ids>();
      EXPECT_EQ(tokenizer->encode(text, {.add_special = false}), ids) << name << ": " << text;
      if (one.contains("with_special")) {
        EXPECT_EQ(tokenizer->encode(text), one["with_special"].get<Ids>()) << name << ": " << text;
      }
      if (!one.contains("decoded")) continue;
      EXPECT_EQ(tokenizer->decode(ids), one["decoded"].get<std::string>()) << name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids, true), one["decoded_plain"].get<std::string>())
          << name << ": " << text;
    }
  }
}

TEST(SentencePieceFolders, StreamedText_IsTheDecodedText) {
  for (const json& golden : golden_folders()) {
    const Folder folder(golden["files"]);
    const auto tokenizer = folder.load();
    for (const json& one : golden["cases"]) {
      const auto ids = one["ids"].get<Ids>();
      for (const bool skip_special : {false, true}) {
        StreamDecoder stream(tokenizer, skip_special);
        std::string text;
        for (const int64_t id : ids) text += stream.push(id);
        EXPECT_EQ(text + stream.finish(), tokenizer->decode(ids, skip_special)) << one["text"];
      }
    }
  }
}

TEST(SentencePieceFolders, AddedTokens_HaveNamesAndIds) {
  const Folder folder({{"added_tokens.json", {{"<|im_end|>", 2000}, {"<fun>", 2001}}},
                       {"special_tokens_map.json", {{"eos_token", "<|im_end|>"}}}});
  const auto tokenizer = folder.load();
  EXPECT_EQ(tokenizer->token(2000), "<|im_end|>");
  EXPECT_EQ(tokenizer->id_of("<fun>"), 2001);
  EXPECT_EQ(tokenizer->token(2002), std::nullopt);
  EXPECT_EQ(tokenizer->id_of("<s>"), 1);
  EXPECT_TRUE(tokenizer->is_special(2000));
  EXPECT_FALSE(tokenizer->is_special(2001));
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(300));
}

TEST(SentencePieceFolders, SpecialTokensWithoutParsing_StayText) {
  const Folder folder({{"added_tokens.json", {{"<|im_end|>", 2000}, {"<fun>", 2001}}},
                       {"special_tokens_map.json", {{"eos_token", "<|im_end|>"}}}});
  const auto tokenizer = folder.load();
  const auto spelled = Folder(json::object())
                           .load()
                           ->encode("<|im_end|>x", {.add_special = false, .parse_special = false});
  EXPECT_GT(spelled.size(), 5U);
  EXPECT_EQ(tokenizer->encode("<|im_end|>x", {.add_special = false, .parse_special = false}),
            spelled);
  EXPECT_EQ(tokenizer->encode("<fun>", {.add_special = false, .parse_special = false}),
            (Ids{2001}));
}

// Models have settings of their own under these keys. transformers 5.19 first adds the tokens with
// names.
TEST(SentencePieceFolders, EntriesThatAreNoTokens_AreIgnored) {
  const Folder folder(
      {{"tokenizer_config.json",
        {{"additional_special_tokens", {7, "<a>", {{"content", "<b>"}}, {{"id", 3}}, nullptr}},
         {"extra_special_tokens", {{"image_token", "<image>"}, {"sizes", {1, 2}}}}}},
       {"special_tokens_map.json", {{"additional_special_tokens", true}}}});
  const auto tokenizer = folder.load();
  EXPECT_EQ(tokenizer->encode("<image><b><a>", {.add_special = false}), (Ids{2000, 2002, 2001}));
  EXPECT_EQ(tokenizer->vocab_size(), 2003);
}

// Cached tokens of one folder must not be used for another that gives other ids.
TEST(SentencePieceFolders, OtherAddedTokens_HaveAnotherFingerprint) {
  const Folder folder(json::object());
  const uint64_t without = folder.load()->fingerprint();
  EXPECT_EQ(folder.load()->fingerprint(), without);
  folder.write("added_tokens.json", R"({"<|im_end|>": 2000})");
  const uint64_t with_one = folder.load()->fingerprint();
  EXPECT_NE(with_one, without);
  folder.write("added_tokens.json", R"({"<|im_end|>": 2001})");
  EXPECT_NE(folder.load()->fingerprint(), with_one);
}

}  // namespace
}  // namespace cleave::sentence_piece_test
