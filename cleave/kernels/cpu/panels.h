#pragma once
#include <cstdint>

namespace cleave {

/// Outputs of a panel; the last panel of a matrix may have fewer.
inline constexpr int64_t kPanel = 64;

/// Panels of so many outputs.
inline int64_t num_panels(int64_t out) {
  return (out + kPanel - 1) / kPanel;
}

/// A matrix [out, words] of 32-bit words in the order in which dot products read it:
/// panel by panel, in a panel the words of the sum one after the other, each with the panel's
/// outputs side by side.
void to_panels(const void* rows, int64_t out, int64_t words, void* to);

}  // namespace cleave
