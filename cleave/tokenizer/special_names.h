#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/tokenizer/vocab.h"

namespace cleave::inline tokenizer {

/// The special and added tokens of a folder, from tokenizer_config.json, special_tokens_map.json
/// and added_tokens.json.
struct SpecialNames {
  std::map<std::string, std::string> by_role;   ///< "bos_token" -> "<s>"
  std::vector<std::string> additional{};        ///< special tokens without one of the usual roles
  std::set<std::string> null_roles{};           ///< those that the files set to null
  std::map<std::string, AddedToken> spelled{};  ///< those that the files describe, by content
  std::vector<AddedToken> listed{};             ///< tokens with ids, by id: see has_decoder
  bool has_decoder = false;      ///< `listed` is from added_tokens_decoder, not added_tokens.json
  std::optional<Json> config{};  ///< tokenizer_config.json

  /// Reads the files that exist. As in transformers, added_tokens_decoder of tokenizer_config.json
  /// takes the place of the other two files; without it, special_tokens_map.json overrides the
  /// roles. Throws Error(kFormat) for members of a wrong type.
  static SpecialNames read(const std::filesystem::path& folder);
  /// The special tokens of a tokenizer_config.json. Throws as read() does.
  static SpecialNames from_config(const Json& tokenizer_config);

  /// Whether the files say that no token has this role.
  [[nodiscard]] bool is_null(const std::string& role) const {
    return null_roles.contains(role) && !by_role.contains(role);
  }

  /// The tokenizer_class of tokenizer_config.json without "Fast"; "" if it names none.
  [[nodiscard]] std::string class_name() const;

  /// Whether text never becomes a special token (split_special_tokens).
  [[nodiscard]] bool splits_special() const {
    return config && config->bool_or("split_special_tokens", false);
  }

  /// Gives the roles that the files do not mention the tokens that the class has by default.
  void add_defaults(std::string_view class_name);

  /// Ids of the roles; `find` maps a token to its id. A role that the files do not mention has the
  /// token that the class has by default. If the files name no special token, the usual names are
  /// searched among `added`.
  [[nodiscard]] SpecialIds ids(
      const std::function<std::optional<int64_t>(const std::string&)>& find,
      const std::vector<AddedToken>& added) const;

  /// The added tokens of a folder without tokenizer.json: `listed`, and the special tokens that
  /// `vocab` contains.
  [[nodiscard]] std::vector<AddedToken> added_tokens(const Vocab& vocab) const;
  /// Gives special tokens that are neither in `vocab` nor in `added` the next ids, as transformers
  /// does.
  void add_missing(const Vocab& vocab, std::vector<AddedToken>& added) const;

  /// Completes the added tokens of a tokenizer.json as transformers does: tokens that only the
  /// other files have get the next ids, added_tokens_decoder says how its tokens are searched, and
  /// all special tokens become special.
  void complete(const Vocab& vocab, std::vector<AddedToken>& added) const;

 private:
  void take(const Json& json);
  void take_additional(const Json& json);
  [[nodiscard]] std::string take_token(const Json& json);
  [[nodiscard]] bool has_special(const std::string& content) const;
  [[nodiscard]] AddedToken special_token(const std::string& content) const;
  [[nodiscard]] std::vector<std::string> all_special() const;
};

}  // namespace cleave::inline tokenizer
