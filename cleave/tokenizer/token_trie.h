#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cleave/tokenizer/flat_map.h"

namespace cleave {

/// A set of byte strings with a number each, asked for the longest one that stands at a place.
class TokenTrie {
 public:
  /// What stands at a place.
  struct Match {
    int64_t value = 0;
    size_t length = 0;  ///< bytes
  };

  /// Adds a string; an equal one is replaced. Empty strings are ignored.
  void add(std::string_view text, int64_t value);

  /// The longest string that `text` begins with.
  [[nodiscard]] std::optional<Match> longest(std::string_view text) const;

  /// Whether any string begins with this byte.
  [[nodiscard]] bool begins_with(char byte) const { return first_[static_cast<uint8_t>(byte)]; }
  [[nodiscard]] bool empty() const { return values_.size() == 1; }

 private:
  static uint64_t edge(uint32_t node, char byte) {
    return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
  }

  FlatMap edges_;
  std::vector<int64_t> values_{kNone};  // of the nodes; node 0 is the root
  std::array<bool, 256> first_{};
  static constexpr int64_t kNone = -1;
};

}  // namespace cleave
