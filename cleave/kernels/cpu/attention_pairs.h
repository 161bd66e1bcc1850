#pragma once
#include "cleave/kernels/cpu/attention_rows.h"

namespace cleave {

/// What attention_forward and attention_backward do, for bf16 and several queries, where
/// has_bf16_products(): probabilities and the scores' gradients are rounded to bf16 before they
/// are multiplied, everything is added up in fp32.
void attention_forward_pairs(const AttentionJob& job, int64_t batch, int64_t kv_head);
void attention_backward_pairs(const AttentionJob& job, int64_t batch, int64_t kv_head);

}  // namespace cleave
