#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/not_stored.h"

namespace cleave {

/// Numbers of a row that one dot product of bytes takes: rows are padded to a multiple of it.
inline constexpr int64_t kInt8Group = 4;
/// What the columns of a matrix are padded to: the last panel may have 16, 32 or 48.
inline constexpr int64_t kInt8Columns = 16;

/// out [rows, columns] = x weight^T x_scale weight_scale + bias, with exact sums of products of
/// bytes in between.
struct Int8Job {
  int64_t rows = 0, columns = 0, width = 0;  // width a multiple of kInt8Group
  const uint8_t* x = nullptr;                // [rows, width], with 128 added to every number
  const float* x_scale = nullptr;            // [rows]
  /// In panels (panels.h) of groups, with zeros in the columns that are padding.
  const int8_t* weight = nullptr;
  const int32_t* weight_sum = nullptr;  // [padded columns], of a column's numbers
  const float* weight_scale = nullptr;  // [padded columns]
  const float* bias = nullptr;          // [columns] or nothing
  float* out = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
/// Panels [begin, end) of the result, by the processor's dot products of bytes where it has them.
void int8_products(const Int8Job& job, int64_t begin, int64_t end);
/// The same in portable code: what other processors run, and the tests' second opinion.
void int8_products_portable(const Int8Job& job, int64_t begin, int64_t end);

}  // namespace cleave
