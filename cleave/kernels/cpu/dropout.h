#pragma once
#include <cstdint>

namespace cleave::inline kernels {

struct DropoutJob;  // kernels/cuda/device_kernels.h; not included, since nn's headers include this

/// Dropout of attention probabilities [B, H, T, S], in which this call has the heads from
/// `first_head` on of `num_heads`. Element (b, h, t, s) has the number
/// (((first_sample + b) num_heads + first_head + h) T + t) S + s in the stream (key, step), and is
/// dropped if that number of fill_uniform() is below p.
struct AttentionDropout {
  double p = 0;  ///< 0: no dropout
  uint64_t key = 0, step = 0;
  int64_t first_sample = 0;
  int64_t num_heads = 0, first_head = 0;
};

/// Dropout on the CPU, on the calling rank's threads.
void dropout_elements(const DropoutJob& job);

}  // namespace cleave::inline kernels
