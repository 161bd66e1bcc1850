#include "cleave/tokenizer/special_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "cleave/base/str.h"

namespace cleave::inline tokenizer {
namespace {

namespace fs = std::filesystem;

/// In the order in which transformers gives new ids.
constexpr std::array<const char*, 7> kRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};

/// The defaults of a class; empty for classes without any. Source: transformers 5.19.
const std::map<std::string_view, std::string_view>& defaults_of(std::string_view class_name) {
  using Roles = std::map<std::string_view, std::string_view>;
  static const Roles none;
  static const Roles llama{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  static const Roles gpt2{{"bos_token", "<|endoftext|>"},
                          {"eos_token", "<|endoftext|>"},
                          {"unk_token", "<|endoftext|>"}};
  static const Roles qwen2{{"eos_token", "<|endoftext|>"},
                           {"pad_token", "<|endoftext|>"},
                           {"unk_token", "<|endoftext|>"}};
  static const Roles gemma{{"bos_token", "<bos>"},
                           {"eos_token", "<eos>"},
                           {"unk_token", "<unk>"},
                           {"pad_token", "<pad>"},
                           {"mask_token", "<mask>"}};
  static const Roles bert{{"unk_token", "[UNK]"},
                          {"sep_token", "[SEP]"},
                          {"pad_token", "[PAD]"},
                          {"cls_token", "[CLS]"},
                          {"mask_token", "[MASK]"}};
  static const Roles roberta{
      {"bos_token", "<s>"},   {"eos_token", "</s>"},  {"sep_token", "</s>"},   {"cls_token", "<s>"},
      {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}};
  static const std::map<std::string_view, const Roles*> classes{
      {"LlamaTokenizer", &llama},      {"CodeLlamaTokenizer", &llama},
      {"GPT2Tokenizer", &gpt2},        {"CodeGenTokenizer", &gpt2},
      {"GPTNeoXTokenizer", &gpt2},     {"Qwen2Tokenizer", &qwen2},
      {"GemmaTokenizer", &gemma},      {"BertTokenizer", &bert},
      {"DistilBertTokenizer", &bert},  {"ElectraTokenizer", &bert},
      {"RobertaTokenizer", &roberta},  {"XLMRobertaTokenizer", &roberta},
      {"CamembertTokenizer", &roberta}};
  const auto found = classes.find(class_name);
  return found == classes.end() ? none : *found->second;
}

/// Common names of special tokens, for folders that define none.
std::vector<std::string> usual_names(const std::string& role) {
  if (role == "bos_token") return {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"};
  if (role == "eos_token") return {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"};
  if (role == "pad_token") return {"<pad>", "[PAD]"};
  if (role == "cls_token") return {"[CLS]"};
  if (role == "sep_token") return {"[SEP]"};
  if (role == "mask_token") return {"[MASK]", "<mask>"};
  return {"<unk>", "[UNK]"};
}

/// {"content": "<s>", "lstrip": false, ...}. Names of older files lack "special".
AddedToken token_of(const Json& json) {
  const Json content = json.at("content");
  if (content.as_string().size() > kMaxContentBytes) {
    content.fail(str("expected at most ", kMaxContentBytes, " bytes"));
  }
  return {.content = content.as_string(),
          .special = json.bool_or("special", false),
          .normalized = json.bool_or("normalized", false),
          .single_word = json.bool_or("single_word", false),
          .lstrip = json.bool_or("lstrip", false),
          .rstrip = json.bool_or("rstrip", false)};
}

/// An entry of added_tokens_decoder, whose key is the id.
AddedToken read_decoder_entry(const Json& object, size_t index) {
  const std::string& key = object.key(index);
  const Json json = object.at(index);
  AddedToken token = token_of(json);
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
  const bool is_id = error == std::errc() && stop == key.data() + key.size();
  if (!is_id || token.id < 0 || token.id > kMaxTokenId) {
    json.fail(str("expected a key that is an id in [0, ", kMaxTokenId, "]"));
  }
  return token;
}

AddedToken* find_in(std::vector<AddedToken>& tokens, const std::string& content) {
  const auto at = std::find_if(tokens.begin(), tokens.end(),
                               [&](const AddedToken& token) { return token.content == content; });
  return at == tokens.end() ? nullptr : &*at;
}

bool by_id(const AddedToken& a, const AddedToken& b) {
  return a.id < b.id;
}

}  // namespace

std::string SpecialNames::take_token(const Json& json) {
  if (!json.is(Json::Type::kObject)) return json.as_string();
  AddedToken token = token_of(json);
  std::string content = token.content;
  spelled.insert_or_assign(content, std::move(token));
  return content;
}

/// A list of tokens, or an object of tokens by names of their own.
void SpecialNames::take_additional(const Json& json) {
  const bool is_list = json.is(Json::Type::kArray) || json.is(Json::Type::kObject);
  for (size_t i = 0; is_list && i < json.size(); ++i) {
    const Json one = json.at(i);
    const bool is_token =
        one.is(Json::Type::kString) || (one.is(Json::Type::kObject) && one.has("content"));
    if (is_token) additional.push_back(take_token(one));
  }
}

void SpecialNames::take(const Json& json) {
  const bool has_lists = !additional.empty();
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string& key = json.key(i);
    const bool is_role = std::find(kRoles.begin(), kRoles.end(), key) != kRoles.end();
    const Json value = json.at(i);
    if (is_role && value.is(Json::Type::kNull)) {
      by_role.erase(key);
      null_roles.insert(key);
    } else if (is_role) {
      by_role[key] = take_token(value);
      null_roles.erase(key);
    } else if (key.ends_with("_token") && value.is(Json::Type::kString)) {
      additional.push_back(value.as_string());  // a role of its own, such as "image_token"
    }
  }
  if (json.has("extra_special_tokens")) take_additional(json.at("extra_special_tokens"));
  if (has_lists || !json.has("additional_special_tokens")) return;
  take_additional(json.at("additional_special_tokens"));
}

bool SpecialNames::has_special(const std::string& content) const {
  return std::any_of(by_role.begin(), by_role.end(),
                     [&](const auto& role) { return role.second == content; }) ||
         std::find(additional.begin(), additional.end(), content) != additional.end();
}

SpecialNames SpecialNames::read(const fs::path& folder) {
  SpecialNames names;
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) names = from_config(Json::parse_file(config.string()));
  if (names.has_decoder) return names;
  const fs::path map = folder / "special_tokens_map.json";
  if (fs::exists(map)) names.take(Json::parse_file(map.string()));
  const fs::path file = folder / "added_tokens.json";
  if (!fs::exists(file)) return names;
  const Json entries = Json::parse_file(file.string());
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool is_special = names.has_special(entries.key(i));
    names.listed.push_back({.id = entries.at(i).as_int(0, kMaxTokenId),
                            .content = entries.key(i),
                            .special = is_special,
                            .normalized = !is_special});
  }
  std::stable_sort(names.listed.begin(), names.listed.end(), by_id);
  return names;
}

SpecialNames SpecialNames::from_config(const Json& tokenizer_config) {
  SpecialNames names;
  names.config = tokenizer_config;
  names.take(tokenizer_config);
  constexpr const char* kDecoder = "added_tokens_decoder";
  names.has_decoder = tokenizer_config.has(kDecoder);
  if (!names.has_decoder) return names;
  const Json entries = tokenizer_config.at(kDecoder);
  for (size_t i = 0; i < entries.size(); ++i) {
    names.listed.push_back(read_decoder_entry(entries, i));
  }
  std::stable_sort(names.listed.begin(), names.listed.end(), by_id);
  return names;
}

std::string SpecialNames::class_name() const {
  std::string name = config ? config->string_or("tokenizer_class", "") : "";
  constexpr std::string_view kFast = "Fast";
  if (name.ends_with(kFast)) name.resize(name.size() - kFast.size());
  return name;
}

void SpecialNames::add_defaults(std::string_view class_name) {
  for (const auto& [role, content] : defaults_of(class_name)) {
    if (!is_null(std::string(role))) by_role.emplace(role, content);
  }
}

SpecialIds SpecialNames::ids(const std::function<std::optional<int64_t>(const std::string&)>& find,
                             const std::vector<AddedToken>& added) const {
  const auto& defaults = defaults_of(class_name());
  const auto id_of = [&](const std::string& role) -> std::optional<int64_t> {
    if (const auto name = by_role.find(role); name != by_role.end()) return find(name->second);
    if (is_null(role)) return std::nullopt;
    if (const auto name = defaults.find(role); name != defaults.end()) {
      if (const auto id = find(std::string(name->second))) return id;
    }
    if (!by_role.empty() || !defaults.empty()) return std::nullopt;
    for (const std::string& usual : usual_names(role)) {
      const auto token = std::find_if(added.begin(), added.end(), [&](const AddedToken& candidate) {
        return candidate.special && candidate.content == usual;
      });
      if (token != added.end()) return token->id;
    }
    return std::nullopt;
  };
  return {.bos = id_of("bos_token"),
          .eos = id_of("eos_token"),
          .pad = id_of("pad_token"),
          .unk = id_of("unk_token"),
          .cls = id_of("cls_token"),
          .sep = id_of("sep_token"),
          .mask = id_of("mask_token")};
}

/// A special token without an id.
AddedToken SpecialNames::special_token(const std::string& content) const {
  const auto at = spelled.find(content);
  AddedToken token = at == spelled.end() ? AddedToken{.content = content} : at->second;
  token.special = true;
  return token;
}

/// In the order in which transformers gives new ids.
std::vector<std::string> SpecialNames::all_special() const {
  std::vector<std::string> all;
  for (const char* role : kRoles) {
    if (const auto name = by_role.find(role); name != by_role.end()) all.push_back(name->second);
  }
  all.insert(all.end(), additional.begin(), additional.end());
  std::erase(all, "");
  return all;
}

std::vector<AddedToken> SpecialNames::added_tokens(const Vocab& vocab) const {
  std::vector<AddedToken> tokens;
  std::set<int64_t> ids;
  const auto add = [&](AddedToken token) {
    token.id = vocab.find(token.content).value_or(token.id);
    const std::optional<std::string_view> known = vocab.token(token.id);
    if (known && *known != token.content) return;
    if (ids.contains(token.id) || find_in(tokens, token.content) != nullptr) return;
    ids.insert(token.id);
    token.special = token.special || has_special(token.content);
    tokens.push_back(std::move(token));
  };
  for (const AddedToken& token : listed) add(token);
  for (const std::string& content : all_special()) {
    if (vocab.find(content)) add(special_token(content));
  }
  return tokens;
}

void SpecialNames::add_missing(const Vocab& vocab, std::vector<AddedToken>& added) const {
  for (const std::string& content : all_special()) {
    if (find_in(added, content) != nullptr || vocab.find(content)) continue;
    AddedToken token = special_token(content);
    token.id = vocab_size_of(vocab, added);
    added.push_back(std::move(token));
  }
}

void SpecialNames::complete(const Vocab& vocab, std::vector<AddedToken>& added) const {
  const auto add = [&](AddedToken token) {
    token.id = vocab.find(token.content).value_or(vocab_size_of(vocab, added));
    added.push_back(std::move(token));
  };
  for (AddedToken token : listed) {
    AddedToken* const own = find_in(added, token.content);
    if (own == nullptr) {
      add(std::move(token));
    } else if (has_decoder) {
      token.id = own->id;
      *own = std::move(token);
    }
  }
  const auto add_special = [&](const std::string& content) {
    AddedToken* const own = find_in(added, content);
    if (own == nullptr) return add(special_token(content));
    own->special = true;
  };
  for (const std::string& content : all_special()) add_special(content);
  for (const auto& [role, name] : defaults_of(class_name())) {
    const std::string content(name);
    const bool applies = !by_role.contains(std::string(role)) && !is_null(std::string(role));
    const bool is_known = find_in(added, content) != nullptr || vocab.find(content).has_value();
    if (applies && is_known) add_special(content);
  }
}

}  // namespace cleave::inline tokenizer
