#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// to = values * scale for rows [begin, end) of a matrix [.., width], compiled for several
/// instruction sets. Products are in fp32, and rounded to nearest if `to` is bf16.
struct DequantizeJob {
  int64_t width = 0;
  bool is_bf16 = false;            ///< `to` is bf16, else fp32
  bool has_column_scales = false;  ///< a scale for each column, else for each row
  const int8_t* values = nullptr;
  const float* scales = nullptr;
  void* to = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
void dequantize_rows(const DequantizeJob& job, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
