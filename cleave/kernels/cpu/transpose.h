#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave {

/// to[c][r] = from[r][c] for rows r in [begin, end) and all `columns`. Row strides are in floats.
struct TransposeJob {
  int64_t columns = 0;
  const float* from = nullptr;
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
  [[no_unique_address]] NotStored not_stored{};
};
void transpose_rows(const TransposeJob& job, int64_t begin, int64_t end);

}  // namespace cleave
