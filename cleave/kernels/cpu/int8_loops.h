#pragma once
#include <cstdint>

namespace cleave {

/// Bytes that rows of 8-bit matrices are padded to.
inline constexpr int64_t kInt8Block = 64;

/// Sums of products of bytes: out [rows, columns] int32 is x weight^T, x [rows, width] with 128
/// added to every number, weight [columns, width]; width a multiple of kInt8Block.
struct Int8Job {
  int64_t rows = 0, columns = 0, width = 0;
  const uint8_t* x = nullptr;
  const int8_t* weight = nullptr;
  int32_t* out = nullptr;
};
/// Columns [begin, end) of the result, by the processor's dot products of bytes where it has them.
void int8_products(const Int8Job& job, int64_t begin, int64_t end);
/// The same in portable code: what other processors run, and the tests' second opinion.
void int8_products_portable(const Int8Job& job, int64_t begin, int64_t end);

/// 128 + round(x * factor) for a row of `width` numbers, and 128 from there to `padded`.
void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to);

}  // namespace cleave
