#pragma once
#include <cstdint>

#include "cleave/kernels/cpu/dropout.h"
#include "cleave/kernels/cpu/kernel_job.h"

namespace cleave::inline kernels {

/// Bytes of the scale, an fp32 number, behind each int8 row.
inline constexpr int64_t kInt8ScaleBytes = 4;

/// A [B, heads, rows, K] tensor with stride 1 in K; the other strides are in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  [[no_unique_address]] NotStored not_stored{};
};

/// Arguments of the attention loops. Data is bf16 if is_bf16, else fp32; keys and values are bf16
/// if has_bf16_keys, and int8 rows if has_int8_keys. Backward has one type.
struct AttentionJob {
  int64_t num_heads = 0, num_kv_heads = 0;           // H, G
  int64_t num_queries = 0, num_keys = 0, width = 0;  // T, S, K
  bool causal = false;
  int64_t window = 0;  // 0: none
  float scale = 1;     // of the scores
  float soft_cap = 0;  // 0: none
  AttentionDropout dropout{};
  bool is_bf16 = false;
  bool has_bf16_keys = false;
  bool has_int8_keys = false;
  const bool* key_mask = nullptr;      // [B, S]
  const int64_t* first_key = nullptr;  // [B, T]
  const int64_t* kv_head = nullptr;    // [H]
  HeadsView q, k, v, out;
  float* log_sums = nullptr;  // [B, H, T]; written forward, read backward
  // Backward's. With parts, dk and dv are fp32 and have heads G num_parts, for each part its sums.
  HeadsView dout, dq, dk, dv;
  int64_t num_parts = 1;  // of the queries of a KV head; 1 for one query
  [[no_unique_address]] NotStored not_stored{};
};

/// Work that one thread does: parts [begin, end) of the queries of the heads that read one KV head
/// of one sequence. Parts do not depend on each other.
struct AttentionParts {
  int64_t batch = 0, kv_head = 0, begin = 0, end = 1;
};

/// Queries that are computed together. Part p of n has the blocks p, p + n, ... of all query heads.
inline constexpr int64_t kQueryBlock = 48;

/// Computes parts: in forward their results, in backward their gradients and what they add to the
/// KV head's. Calls for different heads and parts write disjoint memory.
void attention_forward(const AttentionJob& job, const AttentionParts& parts);
void attention_backward(const AttentionJob& job, const AttentionParts& parts);

/// attention_forward and attention_backward for bf16 and several queries; requires
/// has_bf16_products(). Probabilities and the scores' gradients are rounded to bf16 before they are
/// multiplied; sums are in fp32.
void attention_forward_pairs(const AttentionJob& job, const AttentionParts& parts);
void attention_backward_pairs(const AttentionJob& job, const AttentionParts& parts);

}  // namespace cleave::inline kernels
