#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/not_stored.h"

namespace cleave {

/// The most rows a job can have: as many sums as fit the registers beside the matrix.
inline constexpr int64_t kMostFewRows = 8;

/// y [rows, out] = x [rows, in] weight^T for some columns of y, summed in fp32; rows from 1 to
/// kMostFewRows. Pointers without a type are to float, or to bf16 where is_bf16.
struct FewRowsJob {
  int64_t rows = 0, in = 0, out = 0;
  bool is_bf16 = false;
  /// x as few_rows_pack leaves it: fp32 rows, few_rows_stride(in) apart; for bf16 matrices in
  /// blocks of twice the vector's width, the even elements first and then the odd ones.
  const float* x = nullptr;
  const void* weight = nullptr;  // [out, in]
  float* y = nullptr;            // [rows, out], the sums
  int64_t y_stride = 0;          // numbers from one row of y to the next
  const void* bias = nullptr;    // [out] or nothing
  void* result = nullptr;        // [rows, out]; where it is fp32 it may be y itself
  [[no_unique_address]] NotStored not_stored{};
};
/// Numbers between the packed rows of x. A line more than `in`: rows whose distance is a power of
/// two would all want the same few places of the first-level cache.
inline int64_t few_rows_stride(int64_t in) {
  return in + 16;
}
/// Puts x, of the job's type [rows, in], where the loops read it.
void few_rows_pack(const FewRowsJob& job, const void* x, float* to);
/// Columns [begin, end) of y.
void few_rows_range(const FewRowsJob& job, int64_t begin, int64_t end);
/// Columns [begin, end) of the result: those of y with the bias added, in the job's type.
void few_rows_finish(const FewRowsJob& job, int64_t begin, int64_t end);

}  // namespace cleave
