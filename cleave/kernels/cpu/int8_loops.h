#pragma once
#include <cstdint>

namespace cleave {

/// Bytes that rows of 8-bit matrices are padded to.
inline constexpr int64_t kInt8Block = 64;

/// out [rows, columns] = x weight^T x_scale weight_scale + bias, with exact sums of products of
/// bytes in between.
struct Int8Job {
  int64_t rows = 0, columns = 0, width = 0;  // width a multiple of kInt8Block
  const uint8_t* x = nullptr;                // [rows, width], with 128 added to every number
  const float* x_scale = nullptr;            // [rows]
  const int8_t* weight = nullptr;            // [columns, width]
  const int32_t* weight_sum = nullptr;       // [columns], of a row's numbers
  const float* weight_scale = nullptr;       // [columns]
  const float* bias = nullptr;               // [columns] or nothing
  float* out = nullptr;
};
/// Columns [begin, end) of the result, by the processor's dot products of bytes where it has them.
void int8_products(const Int8Job& job, int64_t begin, int64_t end);
/// The same in portable code: what other processors run, and the tests' second opinion.
void int8_products_portable(const Int8Job& job, int64_t begin, int64_t end);

/// The largest magnitude of a row; NaN where one of its numbers is.
float largest_of_row(const float* x, int64_t width);

/// 128 + round(x * factor) for a row of `width` numbers, and 128 from there to `padded`.
void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to);

}  // namespace cleave
