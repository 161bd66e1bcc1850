#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave {

/// The printable character that stands for a byte in byte-level vocabularies: itself for the
/// printable Latin-1 bytes, U+0100 and following for the others in order ("\n" is U+010A, " " is
/// U+0120).
char32_t byte_to_char(uint8_t byte);

/// The byte for which a character stands; nothing for other characters.
std::optional<uint8_t> char_to_byte(char32_t character);

/// Every byte of `bytes` as its character, in UTF-8.
std::string bytes_to_chars(std::string_view bytes);

/// The bytes again; nothing when a character stands for no byte.
std::optional<std::string> chars_to_bytes(std::string_view characters);

}  // namespace cleave
