#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

// What characters are to the steps of the package `tokenizers`, whatever Unicode version is
// installed: the tables of unicode_tables.h.

bool is_white_space(char32_t c);        ///< White_Space
bool is_punctuation(char32_t c);        ///< where BertPreTokenizer and Punctuation cut
bool is_number(char32_t c);             ///< where Digits cuts
bool is_accent(char32_t c);             ///< what BertNormalizer's strip_accents drops, after NFD
bool is_mark(char32_t c);               ///< what StripAccents drops
bool is_control_or_format(char32_t c);  ///< what BertNormalizer's clean_text drops
bool is_word_character(char32_t c);     ///< \w of Whitespace and of tokens that match whole words
bool is_chinese_character(char32_t c);  ///< ideographs, which BERT sets apart

/// Appends the lower-case form of one character, taken alone.
void append_lower(std::string& out, char32_t c);

/// The Unicode normalisation forms.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// The text in a normalisation form of Unicode 11.0, the version that `tokenizers` has: characters
/// assigned later stay as they are. Malformed bytes become U+FFFD.
std::string to_normal_form(std::string_view text, NormalForm form);

}  // namespace cleave
