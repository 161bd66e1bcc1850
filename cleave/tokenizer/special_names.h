#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/tokenizer/added_tokens.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// What tokenizer_config.json, special_tokens_map.json and added_tokens.json of a folder say.
struct SpecialNames {
  std::map<std::string, std::string> by_role;  ///< "bos_token" -> "<s>"
  std::optional<Json> config;                  ///< tokenizer_config.json

  /// Throws Error(kFormat) for members of a wrong type.
  static SpecialNames read(const std::filesystem::path& folder);

  /// Ids of the roles by `find`; where the files name none, the usual names among `added`.
  [[nodiscard]] SpecialIds ids(
      const std::function<std::optional<int64_t>(const std::string&)>& find,
      const std::vector<AddedToken>& added) const;

  /// Tokens that the older files add to `vocab`: added_tokens_decoder, added_tokens.json, and the
  /// roles that the vocabulary knows.
  [[nodiscard]] std::vector<AddedToken> added_tokens(const std::filesystem::path& folder,
                                                     const Vocab& vocab) const;
};

}  // namespace cleave
