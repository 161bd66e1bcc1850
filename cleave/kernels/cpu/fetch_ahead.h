#pragma once
#include <cstdint>

namespace cleave {

/// How many bytes ahead of its reading memory is fetched where little else is done: the processor
/// by itself foresees no more than a page.
inline constexpr int64_t kFetchAheadBytes = 4096;

}  // namespace cleave
