#pragma once
#include "cleave/kernels/cpu/few_rows_loops.h"

namespace cleave {

/// Whether the processor multiplies pairs of bf16 numbers (AVX-512 BF16).
bool has_bf16_products();

/// Columns [begin, end) of y for a job whose matrix and `x` [rows, in] are bf16, by those: sums in
/// fp32, pair by pair, in which numbers below the normal ones count as zeros.
void bf16_rows_range(const FewRowsJob& job, const void* x, int64_t begin, int64_t end);

/// Rows of A that a pass over B takes.
inline constexpr int64_t kPairRows = 6;

/// C = A B, or C += A B where it adds: of bf16 numbers in pairs along the sum, C in fp32.
///
///   A [rows, pairs] at a[i * a_row + k * a_pair]   B [pairs, columns], rows ldb apart
///   C [rows, columns], rows ldc apart              columns a multiple of 16
struct PairProduct {
  int64_t rows = 0, columns = 0, pairs = 0;
  const uint32_t* a = nullptr;
  int64_t a_row = 0, a_pair = 0;
  const uint32_t* b = nullptr;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool adds = false;
  /// Fetched meanwhile, of at most 64 columns: what is read from memory next. Up to kPairRows rows,
  /// which read B once, as many lines as B has, else next_lines.
  const uint32_t* next = nullptr;
  int64_t next_lines = 0;  // of 64 bytes; 0: nothing is fetched
  [[no_unique_address]] NotStored not_stored{};
};
/// As bf16_rows_range adds up.
void multiply_pairs(const PairProduct& product);

}  // namespace cleave
