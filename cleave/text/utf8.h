#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

/// What stands for bytes that are no character: U+FFFD.
inline constexpr char32_t kReplacement = 0xFFFD;

/// One step of decoding.
struct CodePoint {
  char32_t value = 0;  ///< kReplacement when the bytes are malformed
  uint32_t bytes = 0;  ///< bytes it took, 1..4; 0 only at the end of the text
  bool valid = false;  ///< false for malformed bytes, surrogates and anything above U+10FFFF
};

/// The character at byte `at` (<= text.size()). Malformed bytes give one U+FFFD for each maximal
/// part of a character, as Python's errors="replace" and Rust's from_utf8_lossy do.
CodePoint next_code_point(std::string_view text, size_t at);

/// Byte of the first malformed character; text.size() when there is none.
size_t first_bad_utf8(std::string_view text);

/// Appends the UTF-8 bytes of `value`, which is a scalar value (no surrogate, <= 0x10FFFF).
void append_utf8(std::string& out, char32_t value);

/// The text with U+FFFD for malformed bytes; valid text comes back as it was.
std::string replace_bad_utf8(std::string_view text);

/// Bytes at the end that begin a character and miss its rest: 0..3. What a stream holds back.
size_t unfinished_utf8_tail(std::string_view text);

}  // namespace cleave
