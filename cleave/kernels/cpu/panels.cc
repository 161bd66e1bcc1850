#include <algorithm>

#include <ATen/Parallel.h>

#include "cleave/kernels/cpu/reorder.h"

namespace cleave::inline kernels {

void to_panels(const void* rows, int64_t out, int64_t words, void* to) {
  // The words are copied as floats, whatever their type.
  const auto* source = static_cast<const float*>(rows);
  auto* target = static_cast<float*>(to);
  at::parallel_for(0, num_panels(out), 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kPanel; first < std::min(out, end * kPanel); first += kPanel) {
      const int64_t width = std::min(kPanel, out - first);
      transpose_rows({.columns = words,
                      .from = source + first * words,
                      .from_stride = words,
                      .to = target + first * words,
                      .to_stride = width},
                     0, width);
    }
  });
}

}  // namespace cleave::inline kernels
