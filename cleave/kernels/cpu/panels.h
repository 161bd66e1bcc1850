#pragma once
#include <cstdint>

namespace cleave {

/// Outputs per panel; the last panel of a matrix may have fewer.
inline constexpr int64_t kPanel = 64;

/// Number of panels of a matrix with `out` outputs.
inline int64_t num_panels(int64_t out) {
  return (out + kPanel - 1) / kPanel;
}

/// Reorders a matrix [out, words] of 32-bit words to the order in which dot products read it:
/// [panels][words][outputs of the panel].
void to_panels(const void* rows, int64_t out, int64_t words, void* to);

}  // namespace cleave
