#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cleave::inline generation {

/// The lengths of prompts that start together, and so are padded to the longest. Padding at most
/// doubles the work of each, unless all are short.
class Lengths {
 public:
  /// Adds a length; false, without change, if it is too different from the others.
  bool add(size_t length) {
    const size_t shortest = std::min(shortest_, length), longest = std::max(longest_, length);
    if (longest > std::max(2 * shortest, kShortPrompt)) return false;
    shortest_ = shortest;
    longest_ = longest;
    return true;
  }

 private:
  /// Prompts of up to this many ids start together whatever their lengths: a start reads all
  /// weights.
  static constexpr size_t kShortPrompt = 64;
  size_t shortest_ = SIZE_MAX / 2, longest_ = 0;
};

}  // namespace cleave::inline generation
