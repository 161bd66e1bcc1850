#pragma once
#include <cstdint>

namespace cleave {

/// y [rows, .] = x [rows, in] W for some columns of y, summed in fp32; rows up to 8. Pointers are
/// to float, or to bf16 where is_bf16; y is fp32.
struct FewRowsJob {
  int64_t rows = 0, in = 0, out = 0;
  bool is_bf16 = false;
  /// x as fp32 [rows, in]. Of bf16 matrices by rows, in blocks of twice the vector's width, the
  /// even elements first and then the odd ones: see few_rows_pack.
  const float* x = nullptr;
  const void* weight = nullptr;  // [out, in], or [in, out] where by_columns
  bool by_columns = false;
  float* y = nullptr;  // [rows, out]
};
/// Puts x, of the job's type [rows, in], where the loops read it: `to` [rows, in].
void few_rows_pack(const FewRowsJob& job, const void* x, float* to);
/// Columns [begin, end) of y.
void few_rows_range(const FewRowsJob& job, int64_t begin, int64_t end);

}  // namespace cleave
