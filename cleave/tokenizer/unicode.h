#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline tokenizer {

// Character classes and normalization as in the package `tokenizers`. The tables are fixed in
// unicode_tables.cc, so ids do not depend on the installed Unicode version.

/// Characters from `first` to `last`, both included.
struct CharacterRange {
  char32_t first = 0, last = 0;
};

/// A set of characters.
class CharacterSet {
 public:
  /// Ascending ranges that are not adjacent.
  explicit CharacterSet(std::vector<CharacterRange> ranges);
  /// Parses alternating numbers of characters outside and inside, from U+0000 on: "9 5 18 1".
  static CharacterSet from_runs(std::string_view runs);

  /// Whether the set contains the character.
  [[nodiscard]] bool contains(char32_t c) const;
  [[nodiscard]] const std::vector<CharacterRange>& ranges() const { return ranges_; }
  /// All other code points, including surrogates.
  [[nodiscard]] CharacterSet complement() const;

 private:
  std::vector<CharacterRange> ranges_;
  std::bitset<128> ascii_;
};

/// The characters of a general category ("Lu"), or of all categories with a first letter ("L");
/// null for an unknown name.
const CharacterSet* category_set(std::string_view name);

/// The inside of a regular expression's character class: "\x{41}-\x{5a}...", without surrogates.
/// Large ranges come first, because a matcher that tries them in order then succeeds sooner.
std::string class_text(const CharacterSet& set);

bool is_white_space(char32_t c);        ///< White_Space
bool is_punctuation(char32_t c);        ///< where BertPreTokenizer and Punctuation split
bool is_number(char32_t c);             ///< where Digits splits
bool is_accent(char32_t c);             ///< removed by BertNormalizer's strip_accents, after NFD
bool is_mark(char32_t c);               ///< removed by StripAccents
bool is_control_or_format(char32_t c);  ///< removed by BertNormalizer's clean_text
bool is_word_character(char32_t c);     ///< \w of Whitespace and of tokens that match whole words
bool is_chinese_character(char32_t c);  ///< ideographs, around which BERT puts spaces

/// The end of the cluster of characters (UAX #29) that begins at byte `at` (< text.size()). It
/// knows no Hangul syllables, flags, emoji sequences and conjuncts: their clusters have 6 bytes or
/// more, and Precompiled, which calls it, replaces such clusters by character.
size_t cluster_end(std::string_view text, size_t at);

/// Appends the lower-case form of one character, without context.
void append_lower(std::string& out, char32_t c);

/// The Unicode normalization forms.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// The text in a normalization form of Unicode 11.0, the version in `tokenizers`: characters
/// assigned later do not change. Malformed bytes become U+FFFD.
std::string to_normal_form(std::string_view text, NormalForm form);

// The tables of unicode_tables.cc, made by tools/make_unicode_tables.py.

/// General categories from U+0000 on: a letter, then the number of characters (omitted for one).
extern const std::string_view kCategoryRuns;
/// The categories of the letters: 'A' is the first, 'a' the 27th.
inline constexpr std::string_view kCategories =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co Cs";

/// Character sets: alternating numbers of characters outside and inside, from U+0000 on.
extern const std::string_view kPunctuationRuns, kNumberRuns, kDroppedRuns, kAccentRuns, kMarkRuns,
    kJoinedRuns, kJoiningRuns, kAloneRuns;

/// Runs of characters whose lower-case form is one character: first, last, step, and the difference
/// to that form.
extern const std::string_view kLowerRuns;

}  // namespace cleave::inline tokenizer
