#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/not_stored.h"

namespace cleave {

/// A [B, heads, rows, K] tensor whose heads' elements lie together; strides in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t of_batch = 0, of_head = 0, of_row = 0;
  [[no_unique_address]] NotStored not_stored{};
};

/// All that the loops of attention need. Pointers are to float, or to bf16 where is_bf16, those of
/// keys and values where has_bf16_keys; backward has one type.
struct AttentionJob {
  int64_t num_heads = 0, num_kv_heads = 0;           // H, G
  int64_t num_queries = 0, num_keys = 0, width = 0;  // T, S, K
  bool causal = false;
  bool is_bf16 = false;
  bool has_bf16_keys = false;
  const bool* key_mask = nullptr;    // [B, S]
  const int64_t* kv_head = nullptr;  // [H]
  HeadsView q, k, v, out;
  float* log_sums = nullptr;   // [B, H, T]; written forward, read backward
  HeadsView dout, dq, dk, dv;  // backward's
  [[no_unique_address]] NotStored not_stored{};
};

/// One KV head of one sequence and the query heads that read it: results are written for those, and
/// for backward the KV head's gradients. Tasks do not touch each other's results.
void attention_forward(const AttentionJob& job, int64_t batch, int64_t kv_head);
void attention_backward(const AttentionJob& job, int64_t batch, int64_t kv_head);

}  // namespace cleave
