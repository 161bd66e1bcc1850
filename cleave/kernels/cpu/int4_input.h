#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// This rank's inputs of one group of a matrix: `count` inputs from local index `from` on are the
/// elements from `at` on of the whole matrix's group `index`. All other elements count as zeros.
struct Int4Part {
  int64_t index = 0, from = 0, at = 0, count = 0;
};

/// The parts of a rank that holds these inputs of the whole matrix.
std::vector<Int4Part> int4_parts(const std::vector<Range>& inputs);

/// Quantizes rows of activations to int8: a scale for each part, its largest magnitude / 127. A
/// scale is not finite if an element of the part is not.
struct Int4InputJob {
  int64_t width = 0;
  std::span<const Int4Part> parts;
  const float* x = nullptr;        ///< [rows, width]
  const float* largest = nullptr;  ///< [rows, parts] of the whole groups; null: they are whole
  int8_t* values = nullptr;        ///< the members of Int4Input
  float* scales = nullptr;
  int32_t* offsets = nullptr;
  float* totals = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
/// Rows [begin, end); compiled for several instruction sets.
void int4_input_rows(const Int4InputJob& job, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
