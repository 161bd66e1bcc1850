#pragma once
#include "cleave/nn/heads.h"
#include "cleave/nn/kv_cache.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/rotary.h"

namespace cleave {

struct AttentionOptions {
  int64_t hidden = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< divides num_heads; equal = multi-head, fewer = grouped
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool causal = true;
  double dropout = 0;  ///< on the attention probabilities
  std::optional<RotaryOptions> rotary;
  Init init = Init::normal(0.02);
  Init out_init = Init::normal(0.02);
};

/// What attention does between its projections, whatever these are called: rotary positions, cache,
/// masks, dropout, for this rank's heads. Part of the Layer that owns the projections.
class HeadAttention {
 public:
  explicit HeadAttention(const AttentionOptions& options);

  /// How the heads are cut over an axis. Throws Error(kShape) when there are fewer heads than
  /// ranks.
  [[nodiscard]] HeadCut cut(const Axis& axis) const;
  /// Tells that the projections were cut so.
  void set_split(const Axis& axis);

  ///   q [B, T, H*K]   k, v [B, T, G*K], Replicate or Shard(2)   result as q
  ///
  /// `path` is the owner's: it names the dropout stream, its address the cache's entry. Throws
  /// Error(kShape) when q, k and v were not cut together or tokens are missing.
  DTensor operator()(const DTensor& q, const DTensor& k, const DTensor& v, const std::string& path,
                     const Context& context);
  /// From now on keys and values are rounded to bf16, in the cache and beside it: half the memory
  /// that a token reads. For running alone, and only where the fast attention can read them so.
  void cast_kv_bf16();

 private:
  [[nodiscard]] Tensor dropout_of(const DTensor& q, int64_t num_keys, const std::string& path,
                                  const Context& context) const;
  AttentionOptions options_;
  std::optional<Rotary> rotary_;
  Tensor kv_head_;                          // [local heads]
  std::optional<at::ScalarType> key_type_;  // of keys and values; none: that of the activations
};

/// A Layer that owns a HeadAttention.
class HasHeads {
 public:
  virtual ~HasHeads() = default;
  /// What attends between its projections.
  [[nodiscard]] virtual HeadAttention& heads() = 0;
};

/// Self-attention with separate q, k, v and output projections (Llama's names and S3's aliases).
///
///   x [B, T, D]   result [B, T, D]
///
/// Under tp each rank has whole heads, uneven where they do not divide; KV heads fewer than tp are
/// on several ranks and their gradients are summed. Context gives positions, key_mask and the KV
/// cache.
class Attention : public Layer, public HasHeads {
 public:
  explicit Attention(const AttentionOptions& options);
  [[nodiscard]] HeadAttention& heads() override { return attention_; }
  void prepare_split(const Axis& axis) override;
  void check_split(const Axis& axis) override;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  HeadAttention attention_;
};

}  // namespace cleave
