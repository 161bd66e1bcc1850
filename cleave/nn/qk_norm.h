#pragma once
#include <cstdint>

namespace cleave {

/// The RMS norm of queries and keys before rotary positions: none, over the dims of each head, or
/// over all heads together.
enum class QkNorm : uint8_t { kNone, kEachHead, kAllHeads };

}  // namespace cleave
