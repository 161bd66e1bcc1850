#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// Inputs of a matrix that share a scale.
inline constexpr int64_t kInt4Group = 32;
/// Outputs per panel; the last panel of a matrix is padded with zeros.
inline constexpr int64_t kInt4Panel = 32;

/// Bytes of one group of all outputs of a panel: numbers, scales, and minimums if it has them.
inline constexpr int64_t int4_block_bytes(bool has_mins) {
  return kInt4Panel * (kInt4Group / 2 + (has_mins ? 4 : 2));
}

/// Rows of activations, quantized to int8 by groups.
struct Int4Input {
  const int8_t* values = nullptr;    ///< [rows, groups, 32], -127 to 127
  const float* scales = nullptr;     ///< [rows, groups]
  const int32_t* offsets = nullptr;  ///< [rows, groups], -8 times the sum of the values
  const float* totals = nullptr;     ///< [rows, groups], scale times the sum of the values
  [[no_unique_address]] NotStored not_stored{};
};

/// out [rows, columns] = x weight^T + bias, where element (n, k) of the weight is (q - 8) scale, or
/// q scale - min if it has minimums, with q from 0 to 15. The products and sums of a group are
/// exact integers; groups are added in order in fp32.
struct Int4Job {
  int64_t rows = 0, columns = 0, groups = 0;
  bool has_mins = false;
  Int4Input x;
  /// [panels][groups] blocks: 4-bit numbers as 4 x [32 outputs] words, where byte b of word j has
  /// inputs 4 j + b (lower half) and 4 j + b + 16; then 32 scales and 32 minimums in fp16.
  const uint8_t* weight = nullptr;
  const float* bias = nullptr;  ///< [columns] or null
  float* out = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};

/// Implementations for instruction sets.
enum class Int4Loops : uint8_t { kPortable, kAvx2, kVnni, kAmx };

/// Whether the CPU has the instructions.
bool has_int4_loops(Int4Loops loops);
/// Computes panels [begin, end) of the result with the fastest loops that the CPU has.
void int4_products(const Int4Job& job, int64_t begin, int64_t end);
/// The same with the given loops, which the CPU must have.
void int4_products(const Int4Job& job, int64_t begin, int64_t end, Int4Loops loops);

}  // namespace cleave::inline kernels
