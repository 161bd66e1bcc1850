#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cleave/text/json.h"

namespace cleave {

/// A Unicode regular expression of a tokenizer file, compiled for repeated use by all threads.
class Regex {
 public:
  /// Throws Error(kFormat) with what is wrong with the pattern and where.
  explicit Regex(std::string_view pattern);
  /// The pattern of a JSON string; an error names its key and byte.
  static Regex from_json(const Json& pattern);

  /// Calls `found(begin, end)` for the matches in order, without empty ones. Bytes that are not
  /// UTF-8 match nothing. A pattern that needs too many steps on a text matches nothing from there
  /// on, so that no text takes long.
  void for_each(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

  /// The text with every match replaced by `content`.
  [[nodiscard]] std::string replace(std::string_view text, std::string_view content) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> code_;
};

}  // namespace cleave
