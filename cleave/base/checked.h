#pragma once
#include <cstdint>
#include <string_view>

#include "cleave/base/error.h"

namespace cleave {

/// a + b; Error(kFormat) naming `what` when the sum does not fit in 64 bits.
inline uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum = 0;
  CLEAVE_CHECK(!__builtin_add_overflow(a, b, &sum), Code::kFormat, what, ": ", a, " + ", b,
               " does not fit in 64 bits");
  return sum;
}

/// a * b; Error(kFormat) naming `what` when the product does not fit in 64 bits.
inline uint64_t checked_mul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product = 0;
  CLEAVE_CHECK(!__builtin_mul_overflow(a, b, &product), Code::kFormat, what, ": ", a, " * ", b,
               " does not fit in 64 bits");
  return product;
}

/// whole / parts, which must have no remainder: Error(kShape) names the nearest sizes that divide;
/// Error(kUsage) if parts < 1. `what` and `by` name the numbers in messages ("num_heads", "tp").
inline int64_t exact_div(int64_t whole, int64_t parts, std::string_view what, std::string_view by) {
  CLEAVE_CHECK(parts > 0, Code::kUsage, by, " must be positive; got ", parts);
  const int64_t below = whole / parts * parts;
  CLEAVE_CHECK(below == whole, Code::kShape, what, "=", whole, " cannot be split over ", by, "=",
               parts, "; the nearest sizes that can are ", below, " and ", below + parts);
  return whole / parts;
}

}  // namespace cleave
