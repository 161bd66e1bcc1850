// Oracle: llama.cpp's rule for the tokens of Phi-3 and its table of names of pre-tokenizers,
// written here by hand, and tokenizers of the golden data, whose ids are those of the `tokenizers`
// library (tokenizer/golden_test.cc): a GGUF file of one must give its ids.
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/file/file.h"
#include "cleave/format/gguf_writer.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_tokens_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempFolder;
using testing::HasSubstr;
using testing::IsEmpty;

fs::path small_tokenizers() {
  return test::source_file("tests/golden/tokenizer/small");
}

json small_tokenizer(const std::string& name) {
  return json::parse(read_file(small_tokenizers() / name / "tokenizer.json"));
}

json added_token(int64_t id, const std::string& content, const std::string& attribute = "") {
  json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  if (!attribute.empty()) token[attribute] = true;
  return token;
}

/// Phi-3's added tokens after the vocabulary of the small Llama 2: `</s>` is not special there.
json phi3_tokenizer() {
  json all = small_tokenizer("llama2");
  for (json& token : all["added_tokens"]) {
    if (token["content"] != "</s>") continue;
    token["rstrip"] = true;
    token["special"] = false;
  }
  json& added = all["added_tokens"];
  added.push_back(added_token(2000, "<|endoftext|>"));
  added.push_back(added_token(2001, "<|user|>", "rstrip"));
  added.push_back(added_token(2002, "<|end|>", "rstrip"));
  return all;
}

struct Written {
  std::string name;      ///< general.name
  std::string warnings;  ///< on stderr
  std::shared_ptr<const Tokenizer> original, read;
  json added, pre_tokenizer;  ///< of the tokenizer.json that is read
};

/// Writes a GGUF file of a folder with this tokenizer.json, and reads it.
Written write_and_read(const json& tokenizer, const std::string& folder_name = "model",
                       const json& tokenizer_config = nullptr) {
  const TempFolder folder;
  const fs::path model = folder / folder_name;
  const std::string config = test::changed(test::kLlamaConfig, {{"vocab_size", 2010}});
  test::write_model_folder(model, config, test::tensors_of(config));
  std::ofstream(model / "tokenizer.json") << tokenizer.dump();
  if (!tokenizer_config.is_null()) {
    std::ofstream(model / "tokenizer_config.json") << tokenizer_config.dump();
  }
  const fs::path file = folder / "made.gguf";
  testing::internal::CaptureStderr();
  convert({.from = model.string(), .to = file.string(), .format = ModelFormat::kGguf});
  Written written;
  written.warnings = testing::internal::GetCapturedStderr();
  const Gguf read = Gguf::open(file);
  written.name = read.metadata().string_at("general.name");
  const json made = json::parse(tokenizer_from_gguf(read).at(0).text);
  written.added = made["added_tokens"];
  written.pre_tokenizer = made["pre_tokenizer"];
  written.original = load_tokenizer(model.string());
  written.read = load_model_tokenizer(file.string());
  return written;
}

/// The contents of the tokens with an attribute.
std::set<std::string> tokens_with(const json& added, const std::string& attribute) {
  std::set<std::string> tokens;
  for (const json& token : added) {
    if (token[attribute]) tokens.insert(token["content"]);
  }
  return tokens;
}

const char* const kSpacedTexts[] = {"<|user|>\n  Hello <|end|>\n <|user|> x", "a </s>  b", "<s>  a",
                                    "<|endoftext|> \n a <unk> b"};

TEST(GgufTokens, TokensOfPhi3_AreKeptByTheNameOfTheModel) {
  for (const auto& [folder, name] :
       {std::pair("model", "model phi-3"), {"Phi-3-mini", "Phi-3-mini"}, {"my-PHI3", "my-PHI3"}}) {
    const Written written = write_and_read(phi3_tokenizer(), folder);
    EXPECT_EQ(written.name, name);
    EXPECT_THAT(written.warnings, IsEmpty());
    EXPECT_EQ(tokens_with(written.added, "rstrip"),
              (std::set<std::string>{"</s>", "<|user|>", "<|end|>"}));
    for (const char* text : kSpacedTexts) {
      EXPECT_EQ(written.read->encode(text), written.original->encode(text)) << text;
    }
    EXPECT_EQ(written.read->encode("<|user|>\n  Hello"), written.read->encode("<|user|>Hello"));
    EXPECT_NE(written.read->encode("<s>  Hello"), written.read->encode("<s>Hello"));
  }
}

TEST(GgufTokens, NameOfPhi3WithOtherTokens_IsChanged) {
  for (const auto& [folder, name] : {std::pair("Phi-3-phi3", "Phi 3-phi 3"), {"phi-4", "phi-4"}}) {
    const Written written = write_and_read(small_tokenizer("gpt2"), folder);
    EXPECT_EQ(written.name, name);
    EXPECT_THAT(written.warnings, IsEmpty());
    EXPECT_THAT(tokens_with(written.added, "rstrip"), IsEmpty());
  }
}

TEST(GgufTokens, OtherAttributes_AreLostWithAWarning) {
  json without_end = phi3_tokenizer();  // llama.cpp's rule gives every such token rstrip
  without_end["added_tokens"].push_back(added_token(2003, "<|plain|>"));
  json with_lstrip = phi3_tokenizer();
  with_lstrip["added_tokens"].push_back(added_token(2003, "<mask>", "lstrip"));
  json with_word = small_tokenizer("gpt2");
  with_word["added_tokens"].push_back(added_token(2000, "<w>", "single_word"));
  for (const auto& [tokenizer, named] : {std::pair(without_end, "'</s>' and 2 others have"),
                                         {with_lstrip, "'</s>' and 3 others have"},
                                         {with_word, "'<w>' has"}}) {
    const Written written = write_and_read(tokenizer);
    EXPECT_EQ(written.name, "model");
    EXPECT_THAT(written.warnings,
                HasSubstr(str("warning: GGUF cannot store lstrip, rstrip and single_word of added "
                              "tokens, which ",
                              named)));
    EXPECT_EQ(std::count(written.warnings.begin(), written.warnings.end(), '\n'), 1);
    EXPECT_THAT(tokens_with(written.added, "rstrip"), IsEmpty());
  }
}

/// The tokenizer.json of a file of another program.
json tokenizer_of(const std::string& name, const std::string& model, const std::string& pre,
                  const std::string& scheme = "") {
  GgufMetadata metadata;
  if (!scheme.empty()) metadata.add_string("cleave.prepend_scheme", scheme);
  metadata.add_string("general.name", name);
  metadata.add_string("tokenizer.ggml.model", model);
  metadata.add_string("tokenizer.ggml.pre", pre);
  const GgufValue::Strings tokens = {"<unk>",         "<s>",       "</s>", "<|endoftext|>",
                                     "<|assistant|>", "<|plain|>", "a",    "b"};
  metadata.add("tokenizer.ggml.tokens", {GgufKind::kString, tokens});
  metadata.add("tokenizer.ggml.token_type",
               {GgufKind::kI32, GgufValue::Ints{2, 3, 4, 3, 3, 1, 1, 1}});
  metadata.add("tokenizer.ggml.scores",
               {GgufKind::kF32, GgufValue::Numbers{0, 0, 0, 0, 0, 0, -1, -2}});
  metadata.add("tokenizer.ggml.merges", {GgufKind::kString, GgufValue::Strings{}});
  metadata.add_u32("tokenizer.ggml.bos_token_id", 1);
  const GgufPlan plan(metadata, {});
  const TempFolder folder;
  std::ofstream(folder / "made.gguf", std::ios::binary) << plan.head();
  return json::parse(tokenizer_from_gguf(Gguf::open(folder / "made.gguf")).at(0).text);
}

TEST(GgufTokens, FileOfAModelNamedPhi3_HasLlamaCppsRule) {
  for (const char* name : {"Phi-3 Mini 4k", "PHI3", "a phi-3.5-mini"}) {
    const json added = tokenizer_of(name, "llama", "default")["added_tokens"];
    EXPECT_EQ(added.size(), 5U);
    EXPECT_EQ(tokens_with(added, "rstrip"), (std::set<std::string>{"</s>", "<|assistant|>"}))
        << name;
  }
  for (const char* name : {"Phi 3", "phi-2", "Phi-4-mini", ""}) {
    const json added = tokenizer_of(name, "llama", "default")["added_tokens"];
    EXPECT_THAT(tokens_with(added, "rstrip"), IsEmpty()) << name;
  }
}

TEST(GgufTokens, NamesOfOnePreTokenizer_GiveOneTokenizer) {
  const std::map<std::string, std::vector<std::string>> names = {
      {"gpt-2",
       {"phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion",
        "granite-docling"}},
      {"llama-bpe", {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
      {"dbrx", {"smaug-bpe"}},
      {"qwen2", {"deepseek-r1-qwen"}},
      {"grok-2", {"megrez", "kormo", "f2llmv2", "hunyuan", "solar-open", "stablelm2"}},
      {"smollm",
       {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}},
      {"gpt-4o", {"llama4", "kanana2", "talkie", "minimax-m2"}}};
  std::set<std::string> all;
  for (const auto& [name, others] : names) {
    const json expected = tokenizer_of("m", "gpt2", name);
    EXPECT_TRUE(all.insert(expected.dump()).second) << name;
    for (const std::string& other : others) {
      EXPECT_EQ(tokenizer_of("m", "gpt2", other), expected) << other;
    }
  }
  const Error error = test::thrown_by([] { tokenizer_of("m", "gpt2", "bloom"); });
  EXPECT_THAT(error.what(),
              HasSubstr("metadata 'tokenizer.ggml.pre': 'bloom' is not supported; "
                        "expected gpt-2, llama-bpe, dbrx, qwen2, grok-2, smollm, tekken, "
                        "gpt-4o, or a name that llama.cpp treats as one of them"));
}

std::vector<std::string> golden_texts() {
  std::vector<std::string> texts;
  std::ifstream file(small_tokenizers() / "strings.jsonl");
  for (std::string line; std::getline(file, line);) texts.push_back(json::parse(line)["text"]);
  return texts;
}

// The steps of the families, with the vocabularies of two tokenizers. Mistral Nemo ignores merges.
TEST(GgufTokens, FamiliesOfByteLevelBpe_KeepTheirIds) {
  const std::map<std::string, std::string> names = {{"qwen2", "qwen2"},
                                                    {"smollm2", "smollm"},
                                                    {"olmo2", "dbrx"},
                                                    {"mistral-nemo", "tekken"},
                                                    {"phi4-mini", "gpt-4o"}};
  const std::vector<std::string> texts = golden_texts();
  ASSERT_EQ(texts.size(), 300U);
  size_t num_compared = 0;
  for (const json& family : json::parse(read_file(small_tokenizers() / "families.json"))) {
    const std::string name = family["name"];
    if (!names.contains(name)) continue;
    SCOPED_TRACE(name);
    json tokenizer = small_tokenizer(family["base"]);
    for (const char* const key : {"normalizer", "pre_tokenizer"}) tokenizer[key] = family[key];
    tokenizer["model"]["ignore_merges"] = name == "mistral-nemo";
    const Written written = write_and_read(tokenizer);
    for (const std::string& text : texts) {
      const std::vector<int64_t> ids = written.read->encode(text, {.add_special = false});
      EXPECT_EQ(ids, written.original->encode(text, {.add_special = false})) << text;
    }
    ++num_compared;
  }
  EXPECT_EQ(num_compared, 10U);
}

/// The contents of the added tokens that begin as this one does.
std::set<std::string> tokens_like(const json& added, const std::string& start) {
  std::set<std::string> tokens;
  for (const json& token : added) {
    if (token["content"].get<std::string>().starts_with(start)) tokens.insert(token["content"]);
  }
  return tokens;
}

/// Compares the ids of the golden texts and their texts; returns how many have one of `ids`.
int compare_golden_texts(const Written& written, const std::string& left_out,
                         const std::set<int64_t>& wanted) {
  int num_wanted = 0;
  for (const std::string& text : golden_texts()) {
    if (!left_out.empty() && text.find(left_out) != std::string::npos) continue;
    const std::vector<int64_t> ids = written.read->encode(text);
    EXPECT_EQ(ids, written.original->encode(text)) << text;
    EXPECT_EQ(written.read->decode(ids), written.original->decode(ids)) << text;
    num_wanted +=
        std::any_of(ids.begin(), ids.end(), [&](int64_t id) { return wanted.contains(id); });
  }
  return num_wanted;
}

const std::string kMark = "\xE2\x96\x81";

// llama.cpp finds user-defined tokens in the text and writes them as they are spelled, and its
// converter spells them with spaces (llama.cpp's PR 8228). Texts with marks have other ids then.
TEST(GgufTokens, RunsOfSpacesThatMergesMake_AreSpelledWithSpaces) {
  const Written written = write_and_read(small_tokenizer("gemma"));
  EXPECT_EQ(tokens_like(written.added, " "), (std::set<std::string>{"  ", "   ", "    "}));
  EXPECT_THAT(tokens_like(written.added, kMark), IsEmpty());
  EXPECT_EQ(compare_golden_texts(written, kMark, {7, 8, 9}), 42);
  EXPECT_EQ(written.read->encode("if a:    b", {.add_special = false}),
            written.original->encode("if a:    b", {.add_special = false}));
  EXPECT_EQ(written.read->decode(std::vector<int64_t>{9}), "    ");
}

TEST(GgufTokens, RunsOfMarksThatNoSpacesBecome_KeepTheirSpelling) {
  json tokenizer = small_tokenizer("gemma");
  json merges = json::array();
  for (const json& merge : tokenizer["model"]["merges"]) {
    const bool is_of_spaces = merge[0].get<std::string>().ends_with(kMark) &&
                              merge[1].get<std::string>().ends_with(kMark);
    if (!is_of_spaces) merges.push_back(merge);
  }
  ASSERT_EQ(merges.size() + 6, tokenizer["model"]["merges"].size());
  tokenizer["model"]["merges"] = merges;
  const Written written = write_and_read(tokenizer);
  EXPECT_EQ(tokens_like(written.added, kMark).size(), 3U);
  EXPECT_THAT(tokens_like(written.added, " "), IsEmpty());
  EXPECT_GT(compare_golden_texts(written, "", {7, 8, 9}), 0);
}

/// The small Llama 2 with the steps of a family.
json tokenizer_of_family(const std::string& name) {
  json tokenizer = small_tokenizer("llama2");
  for (const json& family : json::parse(read_file(small_tokenizers() / "families.json"))) {
    if (family["name"] != name) continue;
    for (const char* const key : {"normalizer", "pre_tokenizer"}) tokenizer[key] = family[key];
  }
  return tokenizer;
}

TEST(GgufTokens, MetaspaceThatPutsASpaceBeforeTheText_IsKept) {
  for (const auto& [name, scheme] :
       {std::pair("mistral-v0.3", "first"), {"llama-of-transformers-5", "always"}}) {
    for (const bool splits : {false, true}) {
      SCOPED_TRACE(str(name, splits ? " with split" : ""));
      json tokenizer = tokenizer_of_family(name);
      ASSERT_EQ(tokenizer["pre_tokenizer"]["prepend_scheme"], scheme);
      tokenizer["pre_tokenizer"]["split"] = splits;
      const Written written = write_and_read(tokenizer);
      EXPECT_EQ(written.pre_tokenizer, tokenizer["pre_tokenizer"]);
      EXPECT_EQ(compare_golden_texts(written, "", {}), 0);
      for (const char* text : {"a</s>b", "a</s> b", " a", "<s>  a", "</s>", " "}) {
        EXPECT_EQ(written.read->encode(text), written.original->encode(text)) << text;
      }
      const bool only_first = std::string(scheme) == "first";
      EXPECT_THAT(written.warnings, HasSubstr("texts that begin with a space have other ids"));
      EXPECT_EQ(written.warnings.find("texts after a special token") != std::string::npos,
                only_first);
    }
  }
}

// Oracle: llama.cpp writes every space of a text as U+2581 (llama-vocab.cpp,
// llama_escape_whitespace).
TEST(GgufTokens, StepThatWritesSpacesAsAnotherCharacter_IsRefused) {
  json metaspace = tokenizer_of_family("mistral-v0.3");
  metaspace["pre_tokenizer"]["replacement"] = "_";
  json normalizer = small_tokenizer("llama2");
  for (json& step : normalizer["normalizer"]["normalizers"]) {
    if (step["type"] == "Replace") step["content"] = "_";
  }
  json prefix = small_tokenizer("llama2");
  for (json& step : prefix["normalizer"]["normalizers"]) {
    if (step["type"] == "Prepend") step["prepend"] = "_";
  }
  for (const json& tokenizer : {metaspace, normalizer, prefix}) {
    const Error error = test::thrown_by([&] {
      try {
        write_and_read(tokenizer);
      } catch (...) {
        testing::internal::GetCapturedStderr();
        throw;
      }
    });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(),
                HasSubstr("it writes spaces as '_', and llama.cpp as '\xE2\x96\x81'"));
  }
}

TEST(GgufTokens, AnotherPrependScheme_IsRefused) {
  EXPECT_EQ(tokenizer_of("m", "llama", "default", "first")["pre_tokenizer"]["split"], false);
  const Error error = test::thrown_by([] { tokenizer_of("m", "llama", "default", "last"); });
  EXPECT_THAT(error.what(), HasSubstr("metadata 'cleave.prepend_scheme': it is 'last'; expected "
                                      "first or always"));
}

TEST(GgufTokens, StepsThatLlamaCppHas_AreWrittenWithoutAWarning) {
  json never = tokenizer_of_family("mistral-v0.3");
  never["pre_tokenizer"]["prepend_scheme"] = "never";
  for (const json& tokenizer : {never, small_tokenizer("llama2")}) {
    const Written written = write_and_read(tokenizer);
    EXPECT_THAT(written.warnings, IsEmpty());
    EXPECT_EQ(written.pre_tokenizer, nullptr);
    EXPECT_EQ(compare_golden_texts(written, "", {}), 0);
  }
}

/// The small Gemma with more added tokens.
json gemma_with(const std::vector<json>& more) {
  json tokenizer = small_tokenizer("gemma");
  for (const json& token : more) tokenizer["added_tokens"].push_back(token);
  return tokenizer;
}

// llama.cpp's converter leaves such tokens out. Gemma 3 1B has one.
TEST(GgufTokens, AddedTokensBeyondTheModel_AreLeftOutWithAWarning) {
  const json image = added_token(2010, "<image>"), end = added_token(2012, "<end>");
  for (const auto& [tokens, named] : {std::pair(std::vector{image}, "'<image>' (id 2010) is not"),
                                      {{image, end}, "'<image>' (id 2010) and the ids after it"}}) {
    const Written written = write_and_read(gemma_with(tokens));
    EXPECT_THAT(written.warnings, HasSubstr(named));
    EXPECT_EQ(written.read->vocab_size(), 1000);
    EXPECT_EQ(written.read->id_of("<image>"), std::nullopt);
    EXPECT_EQ(compare_golden_texts(written, kMark, {7, 8, 9}), 42);
    EXPECT_EQ(written.original->encode("<image>", {.add_special = false}),
              std::vector{int64_t{2010}});
  }
}

TEST(GgufTokens, SpecialIdsBeyondTheModel_AreLeftOut) {
  json tokenizer = gemma_with({added_token(2011, "<begin>")});
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<begin>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<begin>", {{"id", "<begin>"}, {"ids", {2011}}, {"tokens", {"<begin>"}}}}}}};
  tokenizer["post_processor"].erase("pair");
  const Written written =
      write_and_read(tokenizer, "model", {{"bos_token", "<begin>"}, {"eos_token", "<begin>"}});
  EXPECT_EQ(written.original->special().bos, 2011);
  EXPECT_NE(written.read->special().bos, 2011);
  EXPECT_NE(written.read->special().eos, 2011);
  EXPECT_EQ(written.read->encode("a b"), written.original->encode("a b", {.add_special = false}));
}

}  // namespace
}  // namespace cleave::gguf_tokens_test
