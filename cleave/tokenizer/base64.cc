#include "cleave/tokenizer/base64.h"

#include <cstdint>

namespace cleave {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::optional<uint32_t> digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<uint32_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<uint32_t>(c - 'a' + 26);
  const size_t at = kDigits.find(c, 52);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<uint32_t>(at);
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string out;
  uint32_t bits = 0;
  uint32_t num_bits = 0;
  for (const char c : text) {
    const std::optional<uint32_t> digit = digit_of(c);
    if (!digit) return std::nullopt;
    bits = (bits << 6) | *digit;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>((bits >> num_bits) & 0xFF));
    }
  }
  if ((bits & ((1U << num_bits) - 1)) != 0) return std::nullopt;
  return out;
}

}  // namespace cleave
