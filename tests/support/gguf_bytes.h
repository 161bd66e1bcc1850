#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

/// Parts of a GGUF file, written from the specification.
namespace cleave::test::gguf {

/// The little-endian bytes of a number.
inline std::string number(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

/// A text with its length before it.
inline std::string text(const std::string& value) {
  return number(value.size(), 8) + value;
}

}  // namespace cleave::test::gguf
