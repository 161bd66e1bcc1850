#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/layout/split.h"
#include "cleave/nn/context.h"

namespace cleave {

using at::Tensor;

/// How attention heads are cut over an axis: whole heads, uneven where they do not divide; a KV
/// head goes to every rank that has one of its query heads.
struct HeadCut {
  const Split* query;  ///< columns of q, rows of the output projection
  const Split* kv;     ///< columns of k and v

  /// Throws Error(kShape) when there are fewer query heads than ranks can use, naming sizes that
  /// work.
  static HeadCut make(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int num_ranks);
};

/// The same heads where q, k and v are columns of one matrix, in this order: each rank's query
/// columns, its key columns, its value columns.
const Split* fused_columns(const HeadCut& cut);

/// For each query head of a rank, the place of its KV head among the KV heads that the rank holds.
/// [local heads] int64.
Tensor kv_head_of(const HeadCut& cut, int64_t num_heads, int64_t num_kv_heads, int rank);

struct AttendOptions {
  bool causal = true;
  Tensor kv_head;  ///< [H] int64, see kv_head_of
  Tensor dropout;  ///< [B, H, T, S] multipliers of the probabilities; undefined = none
};

/// Whether attend() without dropout takes the kernel that keeps no scores for backward.
bool attends_fast(const Tensor& q, const Tensor& k, const Tensor& v);

/// softmax(q k^T / sqrt(K) + mask) v for this rank's heads.
///
///   q [B, H, T, K]   k, v [B, G, S, K], the last T of the S keys are the queries' own
///   result [B, H, T, K]
///
/// k and v may be of a narrower type, then without gradients. A query that may see no key sees its
/// own, so rows that are all padding give finite numbers.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options,
              const Context& context);

}  // namespace cleave
