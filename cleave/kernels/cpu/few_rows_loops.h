#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// Maximal number of rows of a job, so that all sums fit in registers.
inline constexpr int64_t kMaxFewRows = 8;

/// y [rows, out] = x [rows, in] weight^T, summed in fp32, with 1 to kMaxFewRows rows. `void`
/// pointers are to bf16 if is_bf16, else to fp32.
struct FewRowsJob {
  int64_t rows = 0, in = 0, out = 0;
  bool is_bf16 = false;
  /// x as packed by few_rows_pack: fp32 rows, few_rows_stride(in) apart. For bf16 matrices, each
  /// block of two vector widths has its even elements first, then its odd ones.
  const float* x = nullptr;
  const void* weight = nullptr;  // [out, in]
  float* y = nullptr;            // [rows, out], the sums
  int64_t y_stride = 0;          // elements between rows of y
  const void* bias = nullptr;    // [out] or null
  void* result = nullptr;        // [rows, out]; if fp32, it may be y itself
  [[no_unique_address]] NotStored not_stored{};
};
/// Elements between the packed rows of x: a cache line more than `in`, because rows at a
/// power-of-two distance would compete for the same L1 cache sets.
inline int64_t few_rows_stride(int64_t in) {
  return in + 16;
}
/// Packs x [rows, in] of the job's type into `to` for FewRowsJob::x.
void few_rows_pack(const FewRowsJob& job, const void* x, float* to);
/// Computes columns [begin, end) of y.
void few_rows_range(const FewRowsJob& job, int64_t begin, int64_t end);
/// Computes columns [begin, end) of `result`: y plus the bias, in the job's type.
void few_rows_finish(const FewRowsJob& job, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
