// Writes the tokenizer of a GGUF file as tokenizer.json.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "cleave/model/gguf/added_tokens.h"
#include "cleave/model/gguf/pre_tokenizers.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/model/model.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline model {
namespace {

using Object = nlohmann::ordered_json;

constexpr std::string_view kModel = "tokenizer.ggml.model";
constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kPre = "tokenizer.ggml.pre";
constexpr std::string_view kTemplate = "tokenizer.chat_template";
constexpr std::string_view kTemplates = "tokenizer.chat_templates";  // names besides "default"

/// Limits of the merges made from scores: their text grows with the cube of a token's length.
constexpr size_t kLongestDivided = 1024;
constexpr size_t kMostMergeText = size_t{1} << 26;

Object replace(const Object& pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

class TokenizerReader {
 public:
  explicit TokenizerReader(const Gguf& file)
      : metadata_(file.metadata()), tokens_(metadata_.strings_at(kTokens)) {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id].empty()) metadata_.fail(kTokens, str("token ", id, " is empty"));
      const bool added = ids_.emplace(tokens_[id], static_cast<int64_t>(id)).second;
      if (!added) metadata_.fail(kTokens, str("'", tokens_[id], "' is in the list twice"));
    }
    if (metadata_.has(kTypes) && metadata_.ints_at(kTypes).size() != tokens_.size()) {
      metadata_.fail(kTypes, str("it has another length than the ", tokens_.size(), " tokens"));
    }
  }

  std::vector<NamedFile> read() {
    const std::string& model = metadata_.string_at(kModel);
    Object tokenizer = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    tokenizer["added_tokens"] = added_tokens();
    if (model == "llama") {
      add_sentence_piece(tokenizer);
    } else if (model == "gpt2") {
      add_byte_level(tokenizer);
    } else {
      metadata_.fail(kModel, str("'", model, "' is not supported; expected llama or gpt2"));
    }
    return {{"tokenizer.json", tokenizer.dump(1) + "\n"},
            {"tokenizer_config.json", config().dump(1) + "\n"}};
  }

 private:
  [[nodiscard]] GgufToken type_of(size_t id) const {
    if (!metadata_.has(kTypes)) return GgufToken::kNormal;
    return static_cast<GgufToken>(metadata_.ints_at(kTypes)[id]);
  }

  /// The token of a role ("bos"); nullopt if there is none.
  [[nodiscard]] std::optional<std::string> token_of(std::string_view role) const {
    const std::string key = str("tokenizer.ggml.", role, "_token_id");
    if (!metadata_.has(key)) return std::nullopt;
    const int64_t id = metadata_.int_at(key);
    if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) {
      metadata_.fail(key, str(id, " is none of the ", tokens_.size(), " tokens"));
    }
    return tokens_[static_cast<size_t>(id)];
  }

  [[nodiscard]] Object added_tokens() const {
    const bool is_phi3 = has_phi3_name(metadata_.string_or("general.name", ""));
    Object added = Object::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const GgufToken type = type_of(id);
      const bool is_special = type == GgufToken::kControl || type == GgufToken::kUnknown;
      if (!is_special && type != GgufToken::kUserDefined) continue;
      added.push_back({{"id", id},
                       {"content", tokens_[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", is_phi3 && has_phi3_rstrip(tokens_[id])},
                       {"normalized", false},
                       {"special", is_special}});
    }
    return added;
  }

  /// The vocabulary. Ids without a token of the tokenizer are left out. The tokens differ, so they
  /// are appended: operator[] would compare each with all before it.
  [[nodiscard]] Object vocab() const {
    Object::object_t vocab;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (type_of(id) != GgufToken::kUnused) vocab.emplace_back(tokens_[id], id);
    }
    return vocab;
  }

  void add_sentence_piece(Object& tokenizer) const {
    const bool has_prefix = metadata_.bool_or("tokenizer.ggml.add_space_prefix", true);
    Object normalizers = Object::array();
    if (metadata_.bool_or("tokenizer.ggml.remove_extra_whitespaces", false)) {
      normalizers.push_back(replace({{"Regex", "\\A +| +\\z"}}, ""));
      normalizers.push_back(replace({{"Regex", " {2,}"}}, " "));
    }
    const Object own = metaspace();
    if (own.is_null()) {
      if (has_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
      normalizers.push_back(replace({{"String", " "}}, kSpaceMark));
    }
    tokenizer["normalizer"] =
        normalizers.empty() ? Object() : Object{{"type", "Sequence"}, {"normalizers", normalizers}};
    tokenizer["pre_tokenizer"] = own;
    tokenizer["post_processor"] = post_processor(true);
    Object decoders = {
        replace({{"String", kSpaceMark}}, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (has_prefix) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    tokenizer["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    const auto unk = token_of("unknown");
    tokenizer["model"] = {{"type", "BPE"},
                          {"dropout", nullptr},
                          {"unk_token", unk ? Object(*unk) : Object()},
                          {"continuing_subword_prefix", nullptr},
                          {"end_of_word_suffix", nullptr},
                          {"fuse_unk", true},
                          {"byte_fallback", true},
                          {"ignore_merges", false},
                          {"vocab", vocab()},
                          {"merges", merges_of_scores()}};
  }

  /// The Metaspace of a file that Cleave has written; null if it has none.
  [[nodiscard]] Object metaspace() const {
    if (!metadata_.has(kGgufPrependScheme)) return {};
    const std::string& scheme = metadata_.string_at(kGgufPrependScheme);
    if (scheme != "first" && scheme != "always") {
      metadata_.fail(kGgufPrependScheme, str("it is '", scheme, "'; expected first or always"));
    }
    return {{"type", "Metaspace"},
            {"replacement", kSpaceMark},
            {"prepend_scheme", scheme},
            {"split", metadata_.bool_or(kGgufMetaspaceSplit, false)}};
  }

  /// Whether vocab() has the token.
  [[nodiscard]] bool is_used(const std::string& token) const {
    const auto at = ids_.find(token);
    return at != ids_.end() && type_of(static_cast<size_t>(at->second)) != GgufToken::kUnused;
  }

  /// SentencePiece joins the pair whose result has the highest score; among equal ones the first.
  /// A merge for every way to divide a token into two, in order of the scores.
  [[nodiscard]] Object merges_of_scores() const {
    const GgufValue::Numbers& scores = metadata_.numbers_at(kScores);
    if (scores.size() != tokens_.size()) {
      metadata_.fail(kScores,
                     str("it has ", scores.size(), " values for ", tokens_.size(), " tokens"));
    }
    const auto bad = std::find_if(scores.begin(), scores.end(),
                                  [](double score) { return !std::isfinite(score); });
    if (bad != scores.end()) {
      metadata_.fail(kScores, str("the score of token ", bad - scores.begin(), " is not finite"));
    }
    std::vector<size_t> order(tokens_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    Object merges = Object::array();
    size_t text_bytes = 0;
    for (const size_t id : order) {
      if (type_of(id) != GgufToken::kNormal) continue;
      const std::string& token = tokens_[id];
      if (token.size() > kLongestDivided) {
        metadata_.fail(kTokens, str("token ", id, " has ", token.size(),
                                    " bytes; expected at most ", kLongestDivided));
      }
      for (size_t at = next_code_point(token, 0).bytes; at < token.size();
           at += next_code_point(token, at).bytes) {
        const std::string left = token.substr(0, at), right = token.substr(at);
        if (!is_used(left) || !is_used(right)) continue;
        text_bytes += token.size();
        if (text_bytes > kMostMergeText) {
          metadata_.fail(kTokens, str("their merges have more than ", kMostMergeText, " bytes"));
        }
        merges.push_back(Object::array({left, right}));
      }
    }
    return merges;
  }

  [[nodiscard]] const GgufPreTokenizer& pre_tokenizer() const {
    const std::string& name = metadata_.string_at(kPre);
    const auto alias =
        std::find_if(std::begin(kGgufPreTokenizerAliases), std::end(kGgufPreTokenizerAliases),
                     [&](const GgufPreTokenizerAlias& other) { return other.name == name; });
    const bool is_alias = alias != std::end(kGgufPreTokenizerAliases);
    std::string known;
    for (const GgufPreTokenizer& pre : kGgufPreTokenizers) {
      if (pre.name == (is_alias ? alias->same_as : name)) return pre;
      known += str(known.empty() ? "" : ", ", pre.name);
    }
    metadata_.fail(kPre, str("'", name, "' is not supported; expected ", known,
                             ", or a name that llama.cpp treats as one of them"));
  }

  void add_byte_level(Object& tokenizer) const {
    const GgufPreTokenizer& pre = pre_tokenizer();
    const auto byte_level = [](bool use_regex) {
      return Object{{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"trim_offsets", true},
                    {"use_regex", use_regex}};
    };
    Object steps = Object::array();
    if (pre.splits_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    if (!pre.pattern.empty()) {
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", pre.pattern}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    }
    steps.push_back(byte_level(pre.pattern.empty()));
    tokenizer["normalizer"] = pre.normalizes ? Object{{"type", "NFC"}} : Object();
    tokenizer["pre_tokenizer"] =
        steps.size() == 1 ? steps[0] : Object{{"type", "Sequence"}, {"pretokenizers", steps}};
    tokenizer["post_processor"] = post_processor(pre.ignores_merges);
    tokenizer["decoder"] = byte_level(true);
    tokenizer["model"] = {{"type", "BPE"},
                          {"dropout", nullptr},
                          {"unk_token", nullptr},
                          {"continuing_subword_prefix", nullptr},
                          {"end_of_word_suffix", nullptr},
                          {"fuse_unk", false},
                          {"byte_fallback", false},
                          {"ignore_merges", pre.ignores_merges},
                          {"vocab", vocab()},
                          {"merges", metadata_.strings_at(kMerges)}};
  }

  /// The special tokens around a text; `begins`: llama.cpp's default of add_bos_token.
  [[nodiscard]] Object post_processor(bool begins) const {
    Object single = Object::array(), second = Object::array(), special = Object::object();
    const auto add = [&](std::string_view role, std::string_view flag, bool fallback) {
      const auto token = token_of(role);
      if (!token || !metadata_.bool_or(flag, fallback)) return;
      single.push_back({{"SpecialToken", {{"id", *token}, {"type_id", 0}}}});
      second.push_back({{"SpecialToken", {{"id", *token}, {"type_id", 1}}}});
      special[*token] = {{"id", *token},
                         {"ids", Object::array({ids_.at(*token)})},
                         {"tokens", Object::array({*token})}};
    };
    add("bos", "tokenizer.ggml.add_bos_token", begins);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    second.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    add("eos", "tokenizer.ggml.add_eos_token", false);
    Object pair = single;
    pair.insert(pair.end(), second.begin(), second.end());
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens", special}};
  }

  [[nodiscard]] Object config() const {
    Object config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"clean_up_tokenization_spaces", false}};
    constexpr std::pair<const char*, const char*> kRoles[] = {{"bos", "bos_token"},
                                                              {"eos", "eos_token"},
                                                              {"padding", "pad_token"},
                                                              {"unknown", "unk_token"}};
    for (const auto& [role, name] : kRoles) {
      if (const auto token = token_of(role)) config[name] = *token;
    }
    if (metadata_.has(kTemplate)) config["chat_template"] = templates();
    return config;
  }

  /// The chat template, or a list of the default one and others, as older transformers wrote it.
  [[nodiscard]] Object templates() const {
    const std::string& text = metadata_.string_at(kTemplate);
    if (!metadata_.has(kTemplates)) return text;
    Object list = {{{"name", "default"}, {"template", text}}};
    for (const std::string& name : metadata_.strings_at(kTemplates)) {
      const std::string key = str(kTemplate, '.', name);
      if (metadata_.has(key))
        list.push_back({{"name", name}, {"template", metadata_.string_at(key)}});
    }
    return list;
  }

  const GgufMetadata& metadata_;
  const GgufValue::Strings& tokens_;
  std::unordered_map<std::string, int64_t> ids_;
};

/// Adds a folder's templates besides the default one, as transformers keeps them.
void add_other_templates(const std::filesystem::path& folder, std::vector<NamedFile>& files) {
  constexpr std::string_view kFolder = "additional_chat_templates";
  std::vector<std::string> names;
  std::error_code ignored;  // no such folder
  for (const auto& entry : std::filesystem::directory_iterator(folder / kFolder, ignored)) {
    const std::string name = entry.path().filename();
    const bool is_template = is_file_name(name) && name.ends_with(".jinja");
    if (is_template && entry.is_regular_file(ignored)) names.push_back(str(kFolder, '/', name));
  }
  std::sort(names.begin(), names.end());
  for (std::string& name : names) {
    std::string text = read_file(folder / name);
    files.push_back({.name = std::move(name), .text = std::move(text)});
  }
}

bool names_tokenizer(const GgufMetadata& metadata) {
  const std::string model = metadata.string_or(kModel, "no_vocab");
  return model != "no_vocab" && model != "none";
}

}  // namespace

std::vector<NamedFile> tokenizer_from_gguf(const Gguf& file) {
  if (!names_tokenizer(file.metadata())) return {};
  return TokenizerReader(file).read();
}

std::string tokenizer_source(const ModelFolder& folder) {
  // An adapter may be trained with another chat template than the base model's.
  if (!folder.adapter.empty() && has_model_tokenizer(folder.adapter)) return folder.adapter;
  return has_model_tokenizer(folder.path) ? folder.path : folder.weights_path();
}

bool is_tokenizer_of(const ModelFolder& folder, const Tokenizer& tokenizer) {
  const std::string source = tokenizer_source(folder);
  if (!has_model_tokenizer(source)) return false;
  try {
    return load_model_tokenizer(source)->fingerprint() == tokenizer.fingerprint();
  } catch (const Error&) {
    return false;  // Cleave cannot read those files, which may be why another one was given
  }
}

bool has_model_tokenizer(const std::string& path) {
  return is_gguf(path) ? names_tokenizer(Gguf::open(path).metadata()) : has_tokenizer(path);
}

std::shared_ptr<const Tokenizer> load_model_tokenizer(const std::string& path) {
  if (!is_gguf(path)) return load_tokenizer(path);
  const std::vector<NamedFile> files = model_tokenizer_files(path);
  CLEAVE_CHECK(!files.empty(), Code::kIo, path,
               " has no tokenizer; give a folder that has one with --tokenizer");
  return load_tokenizer(files, path);
}

std::vector<NamedFile> model_tokenizer_files(const std::string& path) {
  if (is_gguf(path)) return tokenizer_from_gguf(Gguf::open(path));
  std::vector<NamedFile> files;
  for (const std::string& name : tokenizer_files(path)) {
    files.push_back({.name = name, .text = read_file(std::filesystem::path(path) / name)});
  }
  add_other_templates(path, files);
  return files;
}

std::shared_ptr<const ChatTemplate> load_model_chat_template(const std::string& wanted,
                                                             const std::string& path,
                                                             const Tokenizer& tokenizer,
                                                             std::time_t now) {
  if (!wanted.empty() || !is_gguf(path)) return load_chat_template(wanted, path, tokenizer, now);
  const Gguf file = Gguf::open(path);
  const GgufMetadata& metadata = file.metadata();
  if (!metadata.has(kTemplate)) return nullptr;
  std::optional<jinja::Template> for_tools;
  const std::string of_tools = str(kTemplate, '.', kToolTemplateName);
  if (metadata.has(of_tools)) {
    for_tools.emplace(metadata.string_at(of_tools), str(path, ": ", of_tools));
  }
  return std::make_shared<const ChatTemplate>(metadata.string_at(kTemplate),
                                              str(path, ": ", kTemplate), tokenizer, now,
                                              std::move(for_tools));
}

}  // namespace cleave::inline model

void cleave_load_tokenizer(const std::string& path,
                           std::shared_ptr<const cleave::Tokenizer>& tokenizer) {
  tokenizer = cleave::load_model_tokenizer(path);
}

void cleave_load_chat_template(const std::string& path, const cleave::Tokenizer& tokenizer,
                               std::shared_ptr<const cleave::ChatTemplate>& chat_template) {
  chat_template = cleave::load_model_chat_template("", path, tokenizer, cleave::kTrainingTime);
}
