#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// Elements per dot product instruction; rows are padded to a multiple of it.
inline constexpr int64_t kInt8Group = 4;
/// Columns of a matrix are padded to a multiple of it; the last panel may have 16, 32 or 48.
inline constexpr int64_t kInt8Columns = 16;

/// out [rows, columns] = x weight^T x_scale weight_scale + bias. The integer products and sums are
/// exact.
struct Int8Job {
  int64_t rows = 0, columns = 0, width = 0;  // width a multiple of kInt8Group
  const uint8_t* x = nullptr;                // [rows, width], with 128 added to every element
  const float* x_scale = nullptr;            // [rows]
  /// In panels (panels.h) of groups; padding columns are zeros.
  const int8_t* weight = nullptr;
  const int32_t* weight_sum = nullptr;  // [padded columns], sum of each column
  const float* weight_scale = nullptr;  // [padded columns]
  const float* bias = nullptr;          // [columns] or null
  float* out = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};

/// Implementations for instruction sets; all give the same bits.
enum class Int8Loops : uint8_t { kPortable, kAvx2, kVnni, kAmx };

/// Whether the CPU has the instructions.
bool has_int8_loops(Int8Loops loops);
/// Computes panels [begin, end) of the result with the fastest loops that the CPU has.
void int8_products(const Int8Job& job, int64_t begin, int64_t end);
/// The same with the given loops, which the CPU must have.
void int8_products(const Int8Job& job, int64_t begin, int64_t end, Int8Loops loops);

}  // namespace cleave::inline kernels
