#pragma once
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave::inline base {

/// Parses a size as Hugging Face's tools write it: "5GB" is 5 * 10^9, "5GiB" is 5 * 2^30, "1000"
/// and "1000B" are 1000; K, M, G and T in either case. nullopt for any other string, for 0, and for
/// sizes above 64 bits.
std::optional<uint64_t> bytes_from_text(std::string_view text);

/// "512 bytes", "1.5 MiB", "123 GiB".
std::string bytes_text(double bytes);
inline std::string bytes_text(std::integral auto bytes) {
  return bytes_text(static_cast<double>(bytes));
}

/// The text with spaces before it, so that it has at least `width` bytes.
inline std::string right_aligned(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

}  // namespace cleave::inline base
