#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "cleave/text/json.h"
#include "cleave/tokenizer/regex.h"

namespace cleave {

/// Every place of a fixed text or a regular expression replaced by `content`: the "Replace" of
/// normalizers and decoders.
class Replacement {
 public:
  /// {"pattern": {"String": ..} or {"Regex": ..}, "content": ..}.
  static Replacement from_json(const Json& json);
  Replacement(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  /// The text with all places replaced.
  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  std::string from_, to_;
  std::optional<Regex> regex_;  // instead of from_
};

}  // namespace cleave
