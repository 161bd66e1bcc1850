// Writes a tokenizer.json as GGUF metadata.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/model/facts.h"
#include "cleave/model/gguf/added_tokens.h"
#include "cleave/model/gguf/pre_tokenizers.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/text/json.h"
#include "cleave/tokenizer/steps.h"

namespace cleave::inline model {
namespace {

/// The text of a file; null if it is not there.
const std::string* find_file(std::span<const NamedFile> files, std::string_view name) {
  for (const NamedFile& file : files) {
    if (file.name == name) return &file.text;
  }
  return nullptr;
}

[[noreturn]] void refuse(std::string_view problem) {
  throw Error(Code::kUsage, str("the tokenizer cannot be written as GGUF: ", problem));
}

/// The steps of a normalizer or pre-tokenizer: of a Sequence, or the one; none for null.
std::vector<Json> steps_of(const Json& tokenizer, std::string_view key, std::string_view list) {
  if (!tokenizer.has(key)) return {};
  const Json step = tokenizer.at(key);
  if (step.string_or("type", "") != "Sequence") return {step};
  std::vector<Json> steps;
  const Json all = step.at(list);
  for (size_t i = 0; i < all.size(); ++i) steps.push_back(all.at(i));
  return steps;
}

bool is_type(const Json& step, std::string_view type) {
  return step.string_or("type", "") == type;
}

/// The regular expression of a Split or Replace; empty for a plain string.
std::string pattern_of(const Json& step) {
  return step.has("pattern") ? step.at("pattern").string_or("Regex", "") : "";
}

class TokenizerWriter {
 public:
  TokenizerWriter(GgufMetadata& metadata, const GgufTokenizer& from, const Json& json)
      : metadata_(metadata), from_(from), json_(json), model_(json.at("model")) {}

  /// `vocab_size`: of the model.
  void write(int64_t vocab_size) {
    const std::string& kind = from_.tokenizer->kind();
    const bool is_byte_level = kind == "byte-level BPE" || kind == "bytes";
    if (!is_byte_level && kind != "SentencePiece BPE") {
      refuse(str("it is ", kind, "; expected SentencePiece BPE or byte-level BPE"));
    }
    metadata_.add_string("tokenizer.ggml.model", is_byte_level ? "gpt2" : "llama");
    metadata_.add_string("tokenizer.ggml.pre",
                         is_byte_level ? std::string(pre_tokenizer()) : "default");
    add_tokens(vocab_size);
    if (is_byte_level) {
      metadata_.add("tokenizer.ggml.merges", {GgufKind::kString, merges()});
    } else {
      metadata_.add("tokenizer.ggml.scores", {GgufKind::kF32, scores()});
      add_spaces();
    }
    add_template(vocab_size);
  }

 private:
  /// By id: the type of an added token, kNormal of the others.
  [[nodiscard]] std::vector<GgufToken> added_types() const {
    const Tokenizer& tokenizer = *from_.tokenizer;
    std::vector<GgufToken> types;
    for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const GgufToken added =
          tokenizer.is_special(id) ? GgufToken::kControl : GgufToken::kUserDefined;
      types.push_back(tokenizer.is_added(id) ? added : GgufToken::kNormal);
    }
    return types;
  }

  /// Added tokens for which the model has no row are left out, as by llama.cpp's converter: Gemma 3
  /// has one in its models without images.
  void check_ids_beyond(int64_t count, const std::vector<GgufToken>& added) const {
    const Tokenizer& tokenizer = *from_.tokenizer;
    std::string first;
    for (int64_t id = count; id < tokenizer.vocab_size(); ++id) {
      const auto token = tokenizer.token(id);
      if (token && added[static_cast<size_t>(id)] == GgufToken::kNormal) {
        refuse(str("it has ", tokenizer.vocab_size(), " ids; the model's vocab_size is ", count));
      }
      if (token && first.empty()) first = str("'", *token, "' (id ", id, ")");
    }
    if (first.empty()) return;
    log_warning("the model's vocab_size is ", count, ", so the tokenizer's ", first,
                tokenizer.vocab_size() > count + 1 ? " and the ids after it are" : " is",
                " not written");
  }

  /// Tokens and their types, by id.
  void add_tokens(int64_t count) {
    const Tokenizer& tokenizer = *from_.tokenizer;
    const std::vector<GgufToken> added = added_types();
    check_ids_beyond(count, added);
    GgufValue::Strings tokens;
    GgufValue::Ints types;
    for (int64_t id = 0; id < count; ++id) {
      const auto token = tokenizer.token(id);
      GgufToken type = token ? added[static_cast<size_t>(id)] : GgufToken::kUnused;
      if (token && tokenizer.special().unk == id) type = GgufToken::kUnknown;
      if (token && type == GgufToken::kNormal && is_byte(*token)) type = GgufToken::kByte;
      tokens_.push_back(token ? *token : str("[PAD", id, "]"));
      tokens.push_back(type == GgufToken::kUserDefined ? spelling(id, *token) : tokens_.back());
      types.push_back(static_cast<int64_t>(type));
    }
    types_ = types;
    metadata_.add("tokenizer.ggml.tokens", {GgufKind::kString, std::move(tokens)});
    metadata_.add("tokenizer.ggml.token_type", {GgufKind::kI32, std::move(types)});
  }

  /// llama.cpp finds a user-defined token in the text, and writes it, as it is spelled. Gemma
  /// spells runs of spaces with marks, which its merges make; those must be spelled with spaces.
  [[nodiscard]] std::string spelling(int64_t id, const std::string& token) const {
    const Tokenizer& tokenizer = *from_.tokenizer;
    std::string spaced;
    size_t last = 0, at = 0;
    while ((at = token.find(kSpaceMark, last)) != std::string::npos) {
      spaced += str(std::string_view(token).substr(last, at - last), ' ');
      last = at + kSpaceMark.size();
    }
    spaced += std::string_view(token).substr(last);
    const bool is_found = tokenizer.kind() == "SentencePiece BPE" && !tokenizer.id_of(spaced) &&
                          tokenizer.encode(spaced, {.add_special = false}) == std::vector{id};
    return is_found ? spaced : token;
  }

  /// "<0x41>" of a tokenizer with byte fallback.
  [[nodiscard]] bool is_byte(const std::string& token) const {
    return model_.bool_or("byte_fallback", false) && token.size() == 6 &&
           token.starts_with("<0x") && token.ends_with('>');
  }

  /// "left right", in order. tokenizer.json has this form, or pairs.
  [[nodiscard]] GgufValue::Strings merges() const {
    GgufValue::Strings merges;
    const Json list = model_.at("merges");
    for (size_t i = 0; i < list.size(); ++i) {
      const Json merge = list.at(i);
      merges.push_back(merge.is(Json::Type::kString)
                           ? merge.as_string()
                           : str(merge.at(size_t{0}).as_string(), " ", merge.at(1).as_string()));
    }
    return merges;
  }

  /// SentencePiece's scores: the earlier the first merge that makes a token, the higher. Tokens
  /// that no merge makes are never the result of one in SentencePiece either.
  [[nodiscard]] GgufValue::Numbers scores() const {
    std::unordered_map<std::string, size_t> rank;
    for (const std::string& merge : merges()) {
      std::string token = merge;
      token.erase(token.find(' ', 1), 1);
      rank.emplace(std::move(token), rank.size());
    }
    GgufValue::Numbers scores;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const auto at = rank.find(tokens_[id]);
      const bool is_normal = types_[id] == static_cast<int64_t>(GgufToken::kNormal);
      const size_t score = at != rank.end() ? at->second : is_normal ? rank.size() : 0;
      scores.push_back(-static_cast<double>(score));
    }
    return scores;
  }

  /// Refuses a step that writes something else for a space than llama.cpp.
  static void require_mark(const std::string& mark) {
    if (mark != kSpaceMark) {
      refuse(str("it writes spaces as '", mark, "', and llama.cpp as '", kSpaceMark, '\''));
    }
  }

  /// Whether a space is put before the text, and whether repeated spaces become one.
  void add_spaces() {
    bool has_prefix = false, is_tidied = false;
    for (const Json& step : steps_of(json_, "normalizer", "normalizers")) {
      if (is_type(step, "Prepend")) require_mark(step.string_or("prepend", ""));
      const bool replaces_text = is_type(step, "Replace") && step.at("pattern").has("String");
      if (replaces_text && step.at("pattern").at("String").as_string() == " ") {
        require_mark(step.string_or("content", ""));
      }
      has_prefix = has_prefix || is_type(step, "Prepend");
      is_tidied = is_tidied || (is_type(step, "Replace") && pattern_of(step) == " {2,}");
    }
    for (const Json& step : steps_of(json_, "pre_tokenizer", "pretokenizers")) {
      if (!is_type(step, "Metaspace")) continue;
      const Metaspace metaspace = read_metaspace(step);
      require_mark(metaspace.mark);
      if (has_prefix) continue;
      has_prefix = metaspace.prepend != Metaspace::Prepend::kNever;
      if (has_prefix) add_metaspace(metaspace);
    }
    metadata_.add_bool("tokenizer.ggml.add_space_prefix", has_prefix);
    metadata_.add_bool("tokenizer.ggml.remove_extra_whitespaces", is_tidied);
    if (is_tidied) {
      log_warning(
          "the tokenizer makes one space of several; llama.cpp keeps them, so texts with "
          "double spaces have other ids there");
    }
  }

  /// `metaspace`: one that puts a space before the text.
  void add_metaspace(const Metaspace& metaspace) {
    const bool only_first = metaspace.prepend == Metaspace::Prepend::kFirst;
    metadata_.add_string(std::string(kGgufPrependScheme), only_first ? "first" : "always");
    metadata_.add_bool(std::string(kGgufMetaspaceSplit), metaspace.split);
    log_warning("the tokenizer puts a space before the text",
                only_first ? " but not after special tokens" : " and after special tokens",
                ", and none if there is one; llama.cpp puts one in all these places, so ",
                only_first ? "texts after a special token, as in chats, and " : "",
                "texts that begin with a space have other ids there");
  }

  /// llama.cpp's name of the pre-tokenizer.
  [[nodiscard]] std::string_view pre_tokenizer() const {
    for (const Json& step : steps_of(json_, "normalizer", "normalizers")) {
      if (!is_type(step, "NFC")) refuse("llama.cpp has no normalizer for byte-level BPE but NFC");
    }
    std::string pattern;
    bool splits_digits = false, splits_words = merges().empty();
    for (const Json& step : steps_of(json_, "pre_tokenizer", "pretokenizers")) {
      if (is_type(step, "Digits")) splits_digits = step.bool_or("individual_digits", false);
      if (is_type(step, "Split")) pattern = pattern_of(step);
      const bool is_gpt2 = is_type(step, "ByteLevel") && step.bool_or("use_regex", true);
      splits_words = splits_words || is_type(step, "Split") || is_gpt2;
      if (step.bool_or("add_prefix_space", false)) {
        refuse("add_prefix_space is true, which llama.cpp does not do for byte-level BPE");
      }
    }
    if (!splits_words) refuse("it does not split texts into words, as llama.cpp does");
    const bool ignores_merges = model_.bool_or("ignore_merges", false);
    for (const GgufPreTokenizer& pre : kGgufPreTokenizers) {
      if (pre.pattern == pattern && pre.splits_digits == splits_digits &&
          pre.ignores_merges == ignores_merges) {
        return pre.name;
      }
    }
    refuse(str("Cleave knows no name that llama.cpp has for its pre-tokenizer; its pattern is ",
               pattern, ", and ignore_merges is ", ignores_merges ? "true" : "false"));
  }

  /// Which special tokens are put around a text.
  void add_template(int64_t vocab_size) {
    const SpecialIds& special = from_.tokenizer->special();
    const auto& steps = from_.tokenizer->sequence_template().single;
    const auto is_token = [&](const TemplateStep& step, std::optional<int64_t> id) {
      return step.what == TemplateStep::What::kToken && step.id == id && step.id < vocab_size;
    };
    metadata_.add_bool("tokenizer.ggml.add_bos_token", is_token(steps.front(), special.bos));
    metadata_.add_bool("tokenizer.ggml.add_eos_token", is_token(steps.back(), special.eos));
  }

  GgufMetadata& metadata_;
  const GgufTokenizer& from_;
  const Json& json_;
  Json model_;
  GgufValue::Strings tokens_;  ///< as the tokenizer spells them
  GgufValue::Ints types_;
};

/// The ids that end a text: llama.cpp's keys have room for three.
void add_ends(GgufMetadata& metadata, std::optional<int64_t> own,
              const std::vector<int64_t>& others, int64_t vocab_size) {
  std::vector<int64_t> ends;
  const auto add = [&](int64_t id) {  // -1 is "none" in a config.json
    if (id >= 0 && id < vocab_size && std::find(ends.begin(), ends.end(), id) == ends.end())
      ends.push_back(id);
  };
  add(own.value_or(-1));
  for (const int64_t id : others) add(id);
  constexpr std::string_view kRoles[] = {"eos", "eot", "eom"};
  for (size_t i = 0; i < std::min(ends.size(), std::size(kRoles)); ++i) {
    metadata.add_u32(str("tokenizer.ggml.", kRoles[i], "_token_id"), ends[i]);
  }
  if (ends.size() > std::size(kRoles)) {
    log_warning("the model has ", ends.size(), " end tokens; GGUF can store ", std::size(kRoles),
                ", so in llama.cpp id ", ends[std::size(kRoles)],
                ends.size() > std::size(kRoles) + 1 ? " and the ids after it do" : " does",
                " not end a text");
  }
}

/// The special ids: of the tokenizer, else of the model; the ids of the end of both. Ids for which
/// the model has no row are left out.
void add_special(GgufMetadata& metadata, const SpecialIds& special, const ModelFacts& facts) {
  const auto add = [&](std::string_view role, std::optional<int64_t> id,
                       std::optional<int64_t> other) {
    const auto has_row = [&](std::optional<int64_t> one) {  // -1 is "none" in a config.json too
      return one && *one >= 0 && *one < facts.vocab_size;
    };
    const std::optional<int64_t> chosen = has_row(id) ? id : other;
    if (has_row(chosen)) metadata.add_u32(str("tokenizer.ggml.", role, "_token_id"), *chosen);
  };
  add("bos", special.bos, facts.bos_id);
  add_ends(metadata, special.eos, facts.eos_ids, facts.vocab_size);
  add("unknown", special.unk, std::nullopt);
  add("padding", special.pad, facts.pad_id);
}

/// Chat templates with their names, of which llama.cpp uses "default" and "tool_use".
using NamedTemplates = std::vector<std::pair<std::string, std::string>>;

/// The chat templates: of their own files, or of tokenizer_config.json.
NamedTemplates chat_templates(std::span<const NamedFile> files) {
  NamedTemplates out;
  if (const std::string* text = find_file(files, "chat_template.jinja")) {
    out.emplace_back("default", *text);
    constexpr std::string_view kFolder = "additional_chat_templates/";
    for (const NamedFile& file : files) {
      if (!file.name.starts_with(kFolder)) continue;
      out.emplace_back(std::filesystem::path(file.name).stem(), file.text);
    }
    return out;
  }
  const std::string* config = find_file(files, "tokenizer_config.json");
  if (config == nullptr) return out;
  const Json json = Json::parse(*config, "tokenizer_config.json");
  if (!json.has("chat_template")) return out;
  const Json found = json.at("chat_template");
  if (found.is(Json::Type::kString)) out.emplace_back("default", found.as_string());
  for (size_t i = 0; found.is(Json::Type::kArray) && i < found.size(); ++i) {
    out.emplace_back(found.at(i).at("name").as_string(), found.at(i).at("template").as_string());
  }
  return out;
}

/// Adds chat templates under the keys that llama.cpp's converter uses.
void add_chat_templates(GgufMetadata& metadata, const NamedTemplates& templates) {
  GgufValue::Strings names;
  for (auto [name, text] : templates) {
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c >= 0x80 || !std::isalnum(c); },
        '_');
    const bool is_default = name == "default";
    const std::string key = str("tokenizer.chat_template", is_default ? "" : "." + name);
    if (metadata.has(key)) continue;
    metadata.add_string(key, text);
    if (!is_default) names.push_back(std::move(name));
  }
  if (!names.empty()) metadata.add("tokenizer.chat_templates", {GgufKind::kString, names});
}

}  // namespace

void add_gguf_tokenizer(GgufMetadata& metadata, const GgufTokenizer& tokenizer,
                        const ModelFacts& facts) {
  if (tokenizer.tokenizer == nullptr) {
    metadata.add_string("tokenizer.ggml.model", "no_vocab");
    return add_special(metadata, {}, facts);
  }
  const std::string* json = find_file(tokenizer.files, "tokenizer.json");
  if (json == nullptr) refuse("the folder has no tokenizer.json; save it with transformers");
  const Json parsed = Json::parse(*json, "tokenizer.json");
  TokenizerWriter(metadata, tokenizer, parsed).write(facts.vocab_size);
  warn_of_lost_attributes(tokenizer, parsed);
  add_special(metadata, tokenizer.tokenizer->special(), facts);
  add_chat_templates(metadata, chat_templates(tokenizer.files));
}

}  // namespace cleave::inline model
