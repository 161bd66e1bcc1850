#pragma once
#include <cstdint>
#include <string_view>

#include "cleave/base/error.h"

namespace cleave::inline base {

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

}  // namespace cleave::inline base
