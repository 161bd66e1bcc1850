#pragma once
#include <chrono>

namespace cleave::inline base {

/// Seconds on a monotonic clock. Only differences are meaningful.
inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace cleave::inline base
