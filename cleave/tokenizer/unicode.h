#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

/// Classes of characters, as the Unicode properties of the same name.
bool is_white_space(char32_t c);
bool is_nonspacing_mark(char32_t c);    ///< Mn
bool is_combining_mark(char32_t c);     ///< Mn, Mc, Me
bool is_punctuation(char32_t c);        ///< P*
bool is_number(char32_t c);             ///< Nd, Nl, No
bool is_control_or_format(char32_t c);  ///< Cc, Cf, Co
bool is_word_character(char32_t c);     ///< what \w matches
bool is_chinese_character(char32_t c);  ///< CJK ideographs, which BERT sets apart

/// Appends the lower-case form of one character, taken alone.
void append_lower(std::string& out, char32_t c);

/// The Unicode normalisation forms.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// The text in a normalisation form. Malformed bytes become U+FFFD.
std::string to_normal_form(std::string_view text, NormalForm form);

}  // namespace cleave
