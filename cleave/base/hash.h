#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cleave::inline base {

/// XXH3 with 64 bits and seed 0. Detects accidental changes, not attacks.
uint64_t hash_bytes(std::span<const std::byte> bytes);
uint64_t hash_bytes(std::string_view text);

/// The same hash, computed incrementally. It does not depend on how the bytes are split.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  /// Adds the next bytes.
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t digest() const;  ///< hash of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A number as 16 lower-case hexadecimal digits, and back; nullopt for any other string.
std::string to_hex(uint64_t value);
std::optional<uint64_t> from_hex(std::string_view text);

}  // namespace cleave::inline base
