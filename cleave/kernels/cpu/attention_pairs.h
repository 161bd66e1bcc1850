#pragma once
#include "cleave/kernels/cpu/attention_rows.h"

namespace cleave {

/// attention_forward and attention_backward for bf16 and several queries; requires
/// has_bf16_products(). Probabilities and the scores' gradients are rounded to bf16 before they are
/// multiplied; sums are in fp32.
void attention_forward_pairs(const AttentionJob& job, int64_t batch, int64_t kv_head);
void attention_backward_pairs(const AttentionJob& job, int64_t batch, int64_t kv_head);

}  // namespace cleave
