#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/kernels/cpu/dropout.h"

namespace cleave::inline kernels {

using at::Tensor;

/// Masks of attention, the map from query heads to KV heads, and what happens to the scores.
struct AttentionMask {
  bool causal = false;  ///< query t attends to keys up to t + S - T
  int64_t window = 0;   ///< causal: and only to the last `window` of those; 0: all
  Tensor key_mask{};    ///< [B or 1, S] bool, true = may be attended to; undefined: all
  Tensor first_key{};   ///< causal: [B, T] int64, the first key of each query; undefined: 0
  /// For each query head, which of the G KV heads it reads. Empty: head h reads h.
  std::vector<int64_t> kv_head{};
  double divisor = 0;   ///< of the scores q k^T; 0: sqrt(K)
  double soft_cap = 0;  ///< scores become soft_cap tanh(score / soft_cap); 0: they do not
  AttentionDropout dropout{};
};

/// Rows [..., K] of fp32, bf16 or fp64 rounded to 8 bits: [..., K + 4] int8, the numbers from -127
/// to 127 and then the bytes of their scale, which is the largest magnitude / 127. A row with NaN
/// or infinity stands for a row of NaN.
Tensor to_int8_rows(const Tensor& rows);
/// The rows that these stand for, in the given type.
Tensor from_int8_rows(const Tensor& rows, at::ScalarType type);

/// Whether fast_attention supports these inputs: fp32 or bf16 on the CPU (or the meta device), with
/// head_dim a multiple of 16. If no gradient is needed, keys and values of fp32 queries may be
/// bf16, and those of a single query (T = 1) int8 rows.
bool takes_fast_attention(const Tensor& q, const Tensor& k, const Tensor& v);

/// dropout(softmax(cap(q k^T / divisor) + mask)) v, differentiable. Holds the scores of a few dozen
/// queries at a time, in fp32, and skips blocks of those that the causal mask, the window or
/// first_key hides. For bf16 inputs on a CPU with AVX-512 BF16, probabilities and their gradients
/// are rounded to bf16 between the products.
///
///   q [B, H, T, K]   k, v [B, G, S, K]   result [B, H, T, K], in memory as [B, T, H, K]
///
/// A query whose keys are all masked attends to its own key. Backward recomputes the scores from
/// each query's log-sum-exp (arXiv:2205.14135), and what dropout keeps from its stream. Throws
/// Error(kShape) when sizes do not fit, or when T > S with a mask, a window or first_key is given
/// without the causal mask, a first key is outside [0, the query's own], or the divisor or the soft
/// cap is negative.
Tensor fast_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask);

}  // namespace cleave::inline kernels
