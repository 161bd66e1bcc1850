#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// C = A B, or C += A B if `adds`, in fp32.
///
///   A [rows, depth] at a.data[i * a.row + k * a.col]   B [depth, columns], rows ldb apart
///   C [rows, columns], rows ldc apart                  columns a multiple of 16
struct FloatProduct {
  /// A matrix read element by element.
  struct Strided {
    const float* data = nullptr;
    int64_t row = 0, col = 0;
  };
  int64_t rows = 0, columns = 0, depth = 0;
  Strided a{};
  const float* b = nullptr;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool adds = false;
  /// Prefetch distance in B, in elements.
  int64_t ahead = 0;
  [[no_unique_address]] NotStored not_stored{};
};
/// Adds each sum in the order of k.
void multiply_float_rows(const FloatProduct& product);

}  // namespace cleave::inline kernels
