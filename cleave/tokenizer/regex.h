#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cleave/text/json.h"

namespace cleave::inline tokenizer {

/// A compiled Unicode regular expression of a tokenizer file. All threads may use one object.
class Regex {
 public:
  /// Throws Error(kFormat) with the reason if the pattern is invalid.
  explicit Regex(std::string_view pattern);
  /// The pattern of a JSON string; an error names its key and byte.
  static Regex from_json(const Json& pattern);

  /// Calls `found(begin, end)` for all matches in order, except empty ones. Malformed UTF-8 matches
  /// nothing. Matching stops at a match that needs far more steps than the text has bytes, so that
  /// no text takes long.
  void for_each(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

  /// The text with every match replaced by `content`.
  [[nodiscard]] std::string replace(std::string_view text, std::string_view content) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> code_;
};

/// Replaces all occurrences of a string or a regular expression: the "Replace" of normalizers and
/// decoders.
class Replacement {
 public:
  /// {"pattern": {"String": ..} or {"Regex": ..}, "content": ..}.
  static Replacement from_json(const Json& json);
  Replacement(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  /// The text with all occurrences replaced.
  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  std::string from_, to_;
  std::optional<Regex> regex_;  // used instead of from_
};

}  // namespace cleave::inline tokenizer
