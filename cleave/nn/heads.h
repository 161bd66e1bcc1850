#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/kernels/cpu/dropout.h"
#include "cleave/layout/split.h"
#include "cleave/nn/context.h"

namespace cleave::inline nn {

using at::Tensor;

/// How attention heads are sharded over an axis: whole heads, unevenly if their number does not
/// divide. Every rank that has a query head also has its KV head.
struct HeadShard {
  SplitPtr query;  ///< columns of q, rows of the output projection
  SplitPtr kv;     ///< columns of k and v

  /// Throws Error(kShape) when there are more ranks than query heads, or num_kv_heads does not
  /// divide num_heads.
  static HeadShard make(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int num_ranks);
};

/// The split of a fused matrix with the columns of q, k and v in this order: each rank has its
/// query columns, its key columns and its value columns.
SplitPtr fused_columns(const HeadShard& shard);

/// For each query head of a rank, the local index of its KV head. [local heads] int64.
Tensor kv_head_of(const HeadShard& shard, int64_t num_heads, int64_t num_kv_heads, int rank);

struct AttendOptions {
  bool causal = true;
  int64_t window = 0;  ///< causal: how many keys a query may attend to, its own included; 0: all
  Tensor kv_head;      ///< [H] int64, from kv_head_of
  AttentionDropout dropout{};
  double score_divisor = 0;  ///< of q k^T; 0: sqrt(K)
  double soft_cap = 0;       ///< of the scores, before the mask; 0: none
  /// Added to the scores after the soft cap: [B or 1, H or 1, T or 1, S], fp32 or wider, and may
  /// need a gradient; undefined = none. With it attention holds all scores, in fp32 or wider.
  Tensor bias{};
};

/// Whether attend() uses fast_attention, which saves no scores for backward.
bool uses_fast_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttendOptions& options);

/// dropout(softmax(soft_cap(q k^T / score_divisor) + bias + mask)) v for this rank's heads.
///
///   q [B, H, T, K]   k, v [B, G, S, K], whose last T tokens are those of q if there is a mask
///   result [B, H, T, K]
///
/// k and v may have a narrower type if no gradient is needed. A query whose keys are all masked
/// attends to its own key, so sequences of padding alone give finite numbers.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options,
              const Context& context);

}  // namespace cleave::inline nn
