#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// What attention may look at.
struct AttentionMask {
  bool causal = false;  ///< query t sees keys up to t + S - T
  Tensor key_mask{};    ///< [B or 1, S] bool, true = may be attended to; undefined: all
  /// For each query head, which of the G KV heads it reads. Empty: head h reads h.
  std::vector<int64_t> kv_head{};
};

/// Whether fast_attention takes these: fp32 or bf16 on the processor (or the meta device), heads of
/// a multiple of 16 elements that lie together. Where nothing needs a gradient, keys and values
/// beside fp32 queries may be bf16.
bool takes_fast_attention(const Tensor& q, const Tensor& k, const Tensor& v);

/// softmax(q k^T / sqrt(K) + mask) v, differentiable: scores of a few dozen rows at a time exist,
/// in fp32, and those that a causal mask hides are not computed. Of bf16 inputs, on a processor
/// that multiplies such, probabilities and their gradients are rounded to bf16 between the
/// products.
///
///   q [B, H, T, K]   k, v [B, G, S, K]   result [B, H, T, K], a token's heads side by side
///
/// A query that may see no key sees its own. Backward computes the scores again from the rows'
/// log-sums (arXiv:2205.14135). Throws Error(kShape) when sizes do not fit; with a mask T may not
/// be more than S.
Tensor fast_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask);

}  // namespace cleave
