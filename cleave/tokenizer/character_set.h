#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// Characters from `first` to `last`, both included.
struct CharacterRange {
  char32_t first = 0, last = 0;
};

/// A set of characters.
class CharacterSet {
 public:
  /// Ascending ranges that do not touch.
  explicit CharacterSet(std::vector<CharacterRange> ranges);
  /// From numbers of characters outside and inside by turns, from U+0000 on: "9 5 18 1".
  static CharacterSet from_runs(std::string_view runs);

  /// Whether the character is in it.
  [[nodiscard]] bool contains(char32_t c) const;
  [[nodiscard]] const std::vector<CharacterRange>& ranges() const { return ranges_; }
  /// All other code points, surrogates too.
  [[nodiscard]] CharacterSet complement() const;

 private:
  std::vector<CharacterRange> ranges_;
  std::bitset<128> ascii_;
};

/// The characters of a general category ("Lu") or of all that begin with a letter ("L"); null for
/// another name.
const CharacterSet* category_set(std::string_view name);

/// The inside of a regular expression's character class: "\x{41}-\x{5a}...", largest ranges first,
/// which a matcher that tries them in order finds soonest. Surrogates, which no text has, are left
/// out.
std::string class_text(const CharacterSet& set);

}  // namespace cleave
