#include "cleave/tokenizer/special_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 7> kRoles{"bos_token", "eos_token", "pad_token", "unk_token",
                                            "cls_token", "sep_token", "mask_token"};

/// "<s>" or {"content": "<s>", ...}.
std::string content_of(const Json& json) {
  return json.is(Json::Type::kObject) ? json.at("content").as_string() : json.as_string();
}

void take_roles(const Json& json, std::map<std::string, std::string>& by_role) {
  for (const char* role : kRoles) {
    if (json.has(role)) by_role[role] = content_of(json.at(role));
  }
}

/// Names that models commonly use, for folders that do not say.
std::vector<std::string> usual_names(const std::string& role) {
  if (role == "bos_token") return {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"};
  if (role == "eos_token") return {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"};
  if (role == "pad_token") return {"<pad>", "[PAD]"};
  if (role == "cls_token") return {"[CLS]"};
  if (role == "sep_token") return {"[SEP]"};
  if (role == "mask_token") return {"[MASK]", "<mask>"};
  return {"<unk>", "[UNK]"};
}

AddedToken read_decoder_entry(const Json& object, size_t index) {
  const std::string& key = object.key(index);
  const Json json = object.at(index);
  int64_t id = -1;
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || stop != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
    json.fail(str("expected an id in [0, ", kMaxTokenId, "] as its key"));
  }
  return {.id = id,
          .content = json.at("content").as_string(),
          .special = json.bool_or("special", false),
          .normalized = json.bool_or("normalized", false),
          .single_word = json.bool_or("single_word", false),
          .lstrip = json.bool_or("lstrip", false),
          .rstrip = json.bool_or("rstrip", false)};
}

}  // namespace

SpecialNames SpecialNames::read(const fs::path& folder) {
  SpecialNames names;
  const fs::path map = folder / "special_tokens_map.json";
  if (fs::exists(map)) take_roles(Json::parse_file(map.string()), names.by_role);
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) {
    names.config = Json::parse_file(config.string());
    take_roles(*names.config, names.by_role);
  }
  return names;
}

SpecialIds SpecialNames::ids(const std::function<std::optional<int64_t>(const std::string&)>& find,
                             const std::vector<AddedToken>& added) const {
  const auto id_of = [&](const std::string& role) -> std::optional<int64_t> {
    if (const auto name = by_role.find(role); name != by_role.end()) return find(name->second);
    if (!by_role.empty()) return std::nullopt;
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

std::vector<AddedToken> SpecialNames::added_tokens(const fs::path& folder,
                                                   const Vocab& vocab) const {
  std::vector<AddedToken> tokens;
  std::set<int64_t> ids;
  std::set<std::string> contents;
  const auto add = [&](AddedToken token) {
    const std::optional<std::string_view> known = vocab.token(token.id);
    if (known && *known != token.content) return;
    if (ids.contains(token.id) || contents.contains(token.content)) return;
    ids.insert(token.id);
    contents.insert(token.content);
    tokens.push_back(std::move(token));
  };
  if (config && config->has("added_tokens_decoder")) {
    const Json entries = config->at("added_tokens_decoder");
    for (size_t i = 0; i < entries.size(); ++i) add(read_decoder_entry(entries, i));
  }
  const fs::path file = folder / "added_tokens.json";
  if (fs::exists(file)) {
    const Json entries = Json::parse_file(file.string());
    for (size_t i = 0; i < entries.size(); ++i) {
      add({.id = entries.at(i).as_int(0, kMaxTokenId), .content = entries.key(i)});
    }
  }
  for (const auto& [role, content] : by_role) {
    const std::optional<int64_t> id = vocab.find(content);
    if (id) add({.id = *id, .content = content, .special = true});
  }
  return tokens;
}

}  // namespace cleave
