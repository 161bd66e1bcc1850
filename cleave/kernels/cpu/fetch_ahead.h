#pragma once
#include <cstdint>

namespace cleave {

/// Software prefetch distance in bytes for memory-bound loops. The CPU's own prefetcher stops at
/// page boundaries.
inline constexpr int64_t kFetchAheadBytes = 4096;

}  // namespace cleave
