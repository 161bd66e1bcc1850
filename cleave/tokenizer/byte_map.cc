#include "cleave/tokenizer/byte_map.h"

#include <array>

#include "cleave/text/utf8.h"

namespace cleave {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr size_t kNumChars = 0x144;  // all characters of the map lie below

struct Tables {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, kNumChars> to_byte{};
};

constexpr bool is_printable(char32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Tables make_tables() {
  Tables tables;
  for (int16_t& byte : tables.to_byte) byte = -1;
  char32_t next = kFirstSubstitute;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const char32_t character = is_printable(byte) ? byte : next++;
    tables.to_char[byte] = character;
    tables.to_byte[character] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

char32_t byte_to_char(uint8_t byte) {
  return kTables.to_char[byte];
}

std::optional<uint8_t> char_to_byte(char32_t character) {
  if (character >= kNumChars || kTables.to_byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kTables.to_byte[character]);
}

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(c)));
  return out;
}

std::optional<std::string> chars_to_bytes(std::string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (size_t at = 0; at < characters.size();) {
    const CodePoint point = next_code_point(characters, at);
    const std::optional<uint8_t> byte = char_to_byte(point.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    at += point.bytes;
  }
  return out;
}

}  // namespace cleave
