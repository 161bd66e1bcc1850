#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave::inline text {

/// The replacement character, which stands for malformed bytes.
inline constexpr char32_t kReplacement = 0xFFFD;

/// What some editors write before a text. Readers of data drop it.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// One decoded character.
struct CodePoint {
  char32_t value = 0;  ///< kReplacement if the bytes are malformed
  uint32_t bytes = 0;  ///< bytes consumed, 1..4; 0 only at the end of the text
  bool valid = false;  ///< false for malformed bytes, surrogates and values above U+10FFFF
};

/// Decodes the character at byte `at` (<= text.size()). Malformed bytes give one U+FFFD for each
/// maximal part of a character, as with Python's errors="replace" and Rust's from_utf8_lossy.
CodePoint next_code_point(std::string_view text, size_t at);

/// Byte offset of the first malformed character; text.size() if all are valid.
size_t first_bad_utf8(std::string_view text);

/// Refuses a file that begins like UTF-16 text or a gzip archive, neither of which is UTF-8, with
/// the command that converts it. Throws Error(kFormat).
void require_utf8_file(const std::string& path, std::string_view begin);

/// Appends the UTF-8 bytes of `value`, a scalar value (not a surrogate, <= 0x10FFFF).
void append_utf8(std::string& out, char32_t value);

/// The text with malformed bytes replaced by U+FFFD.
std::string replace_bad_utf8(std::string_view text);

/// Number of bytes at the end that are the beginning of an incomplete character: 0..3.
size_t unfinished_utf8_tail(std::string_view text);

}  // namespace cleave::inline text
