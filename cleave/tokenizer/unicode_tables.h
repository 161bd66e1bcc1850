#pragma once
#include <string_view>

namespace cleave {

// Classes of characters as the Rust package `tokenizers` has them, from libraries of several
// Unicode versions: fixed here, so that ids do not depend on what is installed. Made by
// tools/make_unicode_tables.py.

/// General categories from U+0000 on: a letter, then how many characters (nothing for one).
extern const std::string_view kCategoryRuns;
/// What the letters stand for: 'A' is the first, 'a' the 27th.
inline constexpr std::string_view kCategories =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co Cs";

/// Sets: how many characters are outside and inside by turns, from U+0000 on.
extern const std::string_view kPunctuationRuns, kNumberRuns, kDroppedRuns, kAccentRuns, kMarkRuns;

/// First, last, step and distance to the lower-case form of those that have one of one character.
extern const std::string_view kLowerRuns;

}  // namespace cleave
