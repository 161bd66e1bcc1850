#pragma once
#include <array>
#include <cstdint>

#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// The numbers of QuantizedForm::kNf4, ascending: quantiles of the normal distribution, with 0 as
/// one of them. Source: arXiv:2305.14314, appendix E.
inline constexpr std::array<float, 16> kNf4Numbers{
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

/// to = values * scale for rows [begin, end) of a QuantizedWeight [.., width], compiled for several
/// instruction sets. Products are in fp32, and rounded to nearest if `to` is bf16.
struct DequantizeJob {
  int64_t width = 0;
  bool is_bf16 = false;            ///< `to` is bf16, else fp32
  bool has_column_scales = false;  ///< the scales have a row for each block, else for each row
  const int8_t* values = nullptr;  ///< int8, or two numbers of kNf4Numbers in each
  const float* scales = nullptr;
  const int32_t* block_of = nullptr;  ///< kNf4: of each input; nullptr: int8
  int64_t num_blocks = 1;
  void* to = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};
void dequantize_rows(const DequantizeJob& job, int64_t begin, int64_t end);

}  // namespace cleave::inline kernels
