#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave {

/// The printable character that represents a byte in byte-level vocabularies: the printable Latin-1
/// bytes represent themselves, the others are U+0100 and following in order ("\n" is U+010A, " " is
/// U+0120).
char32_t byte_to_char(uint8_t byte);

/// The byte that a character represents; nullopt for other characters.
std::optional<uint8_t> char_to_byte(char32_t character);

/// The characters of all bytes, in UTF-8.
std::string bytes_to_chars(std::string_view bytes);

/// The bytes of all characters; nullopt if a character represents no byte.
std::optional<std::string> chars_to_bytes(std::string_view characters);

/// The bytes of padded base64 text (RFC 4648); nullopt if it is invalid.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace cleave
