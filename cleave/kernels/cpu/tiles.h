#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// Whether the CPU has AMX with bf16 and int8, and the system lets this process use it.
bool has_tiles();

/// C = A B, or C += A B if `adds`, of 32-bit words: pairs of bf16 with fp32 sums, or four bytes
/// with 32-bit sums that wrap around.
///
///   A [rows, words], rows a_row apart   B [words, columns], rows ldb apart
///   C [rows, columns], rows ldc apart   columns a multiple of 16
struct TileProduct {
  int64_t rows = 0, columns = 0, words = 0;
  const void* a = nullptr;
  int64_t a_row = 0;
  const void* b = nullptr;
  int64_t ldb = 0;
  void* c = nullptr;
  int64_t ldc = 0;
  bool adds = false;
  const void* next = nullptr;  ///< memory that is read next, to prefetch meanwhile
  int64_t next_lines = 0;      ///< of 64 bytes; 0: no prefetch
  [[no_unique_address]] NotStored not_stored{};
};
/// Needs has_tiles(). fp32 sums, 16 pairs at a time; denormals count as zero. A row's result does
/// not depend on the other rows.
void multiply_bf16_tiles(const TileProduct& product);
/// Needs has_tiles(). A's bytes are unsigned, B's are signed.
void multiply_int8_tiles(const TileProduct& product);

/// Products of many small matrices of the same sizes, C = A B, with 32-bit sums. Needs has_tiles().
/// This thread must not use other tiles in its lifetime.
///
///   A [rows, 32] signed bytes   B [8, 32] words of four unsigned bytes   C [rows, 32]
class GroupTiles {
 public:
  static constexpr int64_t kRows = 32;  ///< maximum
  explicit GroupTiles(int64_t rows);
  ~GroupTiles();
  GroupTiles(const GroupTiles&) = delete;
  GroupTiles& operator=(const GroupTiles&) = delete;
  /// The rows of `a` are `a_row` bytes apart.
  void multiply(const int8_t* a, int64_t a_row, const uint8_t* b, int32_t* c) const;

 private:
  int64_t rows_;
};

}  // namespace cleave::inline kernels
