#pragma once
#include "cleave/kernels/cpu/few_rows_loops.h"

namespace cleave {

/// Whether the processor multiplies pairs of bf16 numbers (AVX-512 BF16).
bool has_bf16_products();

/// Columns [begin, end) of y for a job whose matrix and `x` [rows, in] are bf16, by those: sums in
/// fp32, pair by pair, in which numbers below the normal ones count as zeros.
void bf16_rows_range(const FewRowsJob& job, const void* x, int64_t begin, int64_t end);

}  // namespace cleave
