#pragma once
#include "cleave/kernels/cpu/few_rows_loops.h"

namespace cleave::inline kernels {

/// Whether the CPU has dot products of bf16 pairs (AVX-512 BF16).
bool has_bf16_products();

/// Columns [begin, end) of y for a bf16 job with bf16 `x` [rows, in], by AVX-512 BF16: fp32 sums,
/// pair by pair; denormals count as zero.
void bf16_rows_range(const FewRowsJob& job, const void* x, int64_t begin, int64_t end);

/// Rows of A per pass over B.
inline constexpr int64_t kPairRows = 6;

/// C = A B, or C += A B if `adds`. A and B are bf16 in pairs along the summed dim; C is fp32.
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
  /// Memory that is read next, to prefetch meanwhile; only for at most 64 columns. If rows <=
  /// kPairRows, B is read once and as many cache lines as B has are prefetched, else next_lines.
  const uint32_t* next = nullptr;
  int64_t next_lines = 0;  // of 64 bytes; 0: no prefetch
  [[no_unique_address]] NotStored not_stored{};
};
/// Sums as in bf16_rows_range; as in multiply_bf16_tiles if the CPU has tiles and a_pair is 1.
void multiply_pairs(const PairProduct& product);

}  // namespace cleave::inline kernels
