#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// to[c][r] = from[r][c] for rows r in [begin, end) and all `columns`. Row strides are in elements.
template <class T>
struct TransposeJob {
  int64_t columns = 0;
  const T* from = nullptr;
  int64_t from_stride = 0;
  T* to = nullptr;
  int64_t to_stride = 0;
  [[no_unique_address]] NotStored not_stored{};
};
void transpose_rows(const TransposeJob<float>& job, int64_t begin, int64_t end);
/// For bf16 and fp16.
void transpose_rows(const TransposeJob<uint16_t>& job, int64_t begin, int64_t end);

/// Outputs per panel; the last panel of a matrix may have fewer.
inline constexpr int64_t kPanel = 64;

/// Number of panels of a matrix with `out` outputs.
inline int64_t num_panels(int64_t out) {
  return (out + kPanel - 1) / kPanel;
}

/// Reorders a matrix [out, words] of 32-bit words to the order in which dot products read it:
/// [panels][words][outputs of the panel].
void to_panels(const void* rows, int64_t out, int64_t words, void* to);

}  // namespace cleave::inline kernels
