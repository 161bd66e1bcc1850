#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cleave {

/// XXH3, 64 bits, seed 0, of bytes in memory. Finds accidents, not attackers.
uint64_t hash_bytes(std::span<const std::byte> bytes);
uint64_t hash_bytes(std::string_view text);

/// The same hash over bytes that come in pieces: how they are cut does not change it.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  /// Adds the next bytes.
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t digest() const;  ///< of everything so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 lower-case hexadecimal digits / the number again; nothing when `text` is anything else.
std::string to_hex(uint64_t value);
std::optional<uint64_t> from_hex(std::string_view text);

}  // namespace cleave
