#pragma once
#include "cleave/nn/heads.h"
#include "cleave/nn/heads_norm.h"
#include "cleave/nn/kv_cache.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/relative_bias.h"
#include "cleave/nn/rotary.h"

namespace cleave::inline nn {

struct AttentionOptions {
  int64_t hidden = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  ///< divides num_heads; equal = multi-head, fewer = grouped
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool causal = true;
  int64_t window = 0;  ///< causal: how many keys a query may attend to, its own included; 0: all
  double dropout = 0;  ///< on the attention probabilities
  double score_divisor = 0;  ///< of q k^T; 0: sqrt(head_dim)
  double soft_cap = 0;       ///< of the scores, before the mask; 0: none
  /// If its head_dim is less than that of the heads, only the first dims of each head rotate.
  std::optional<RotaryOptions> rotary{};
  QkNorm qk_norm = QkNorm::kNone;  ///< Attention applies it, HeadAttention does not
  double norm_eps = 1e-6;          ///< of qk_norm
  double norm_offset = 0;          ///< of qk_norm, added to its weight
  /// Attention adds a bias by the distance of query and key to the scores (T5).
  std::optional<RelativeBiasOptions> relative_bias{};
  /// Cross-attention: Attention computes keys and values from the value of this name in
  /// Context::values, which is as wide as x; empty: from x.
  std::string keys_from{};
  Init init = Init::normal(0.02);
  Init out_init = Init::normal(0.02);
};

/// Attention for this rank's heads, without the projections: rotary positions, KV cache, masks and
/// dropout. A member of the Layer that owns the projections.
class HeadAttention {
 public:
  explicit HeadAttention(const AttentionOptions& options);

  /// How the heads are sharded over an axis. Throws Error(kShape) when there are fewer heads than
  /// ranks.
  [[nodiscard]] HeadShard shard(const Axis& axis) const;
  /// Call it when the projections are sharded by shard(axis).
  void set_split(const Axis& axis);

  ///   q [B, T, H*K]   k, v [B, T, G*K], Replicate or Shard(2)   result as q
  ///
  /// `path` is the owner's path: it selects the dropout stream and the entry of the cache, so every
  /// attention of a model needs its own. `bias`, if defined, is added to the scores of this rank's
  /// heads, as in AttendOptions. Throws Error(kShape) when q, k and v are not sharded together, or
  /// when a rank does not have all tokens.
  DTensor operator()(const DTensor& q, const DTensor& k, const DTensor& v, const std::string& path,
                     const Context& context, const Tensor& bias = {});
  /// Floating point operations of forward per token, over all ranks' heads.
  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const;
  /// From now on, rounds keys and values to bf16, cached or not, which halves the memory that
  /// decoding reads. Inference only. Does nothing when fast_attention cannot read bf16 keys.
  void cast_kv_bf16();
  /// From now on, rounds keys and values to int8 with a scale for each token and head, cached or
  /// not. Inference on CPUs only.
  void cast_kv_int8() { key_type_ = at::kChar; }

 private:
  /// Rotates q and k by the positions of `context`, after `past` cached tokens.
  void rotate(Tensor& q, Tensor& k, int64_t past, const std::string& path, const Context& context);
  /// The attention of a step that is recorded (Context::num_keys).
  Tensor decoded(const Tensor& q, const Tensor& k, const Tensor& v, const std::string& path,
                 const Context& context);
  /// The dropout of the probabilities for the queries `q`.
  [[nodiscard]] AttentionDropout dropout_of(const DTensor& q, const std::string& path,
                                            const Context& context) const;
  AttentionOptions options_;
  std::optional<Rotary> rotary_;
  Tensor kv_head_;                          // [local heads]
  int64_t skipped_ = 0;                     // query heads of the first KV head on other ranks
  std::optional<at::ScalarType> key_type_;  // of keys and values; empty: the activations' type
};

/// A Layer that owns a HeadAttention.
class HasHeads {
 public:
  virtual ~HasHeads() = default;
  /// Its HeadAttention.
  [[nodiscard]] virtual HeadAttention& heads() = 0;
};

/// Attention with separate q, k, v and output projections, named q_proj, k_proj, v_proj and o_proj
/// as in Llama, with the aliases wq, wk, wv and wo. With qk_norm it also has q_norm and k_norm; if
/// these are over all heads, their style under tp is Colwise. With relative_bias it also has the
/// table relative_attention_bias.weight [buckets, heads], at first Init::normal(0.02).
///
///   x [B, T, D]   result [B, T, D]
///
/// Under tp each rank has whole heads, unevenly if tp does not divide their number, and their
/// columns of the table. With fewer KV heads than tp, several ranks hold the same KV head and its
/// gradients are summed. Context provides positions, key_mask and the KV cache.
///
/// Cross-attention (keys_from=NAME) reads the value NAME [B, S, D] and, if there is one, the value
/// NAME_mask [B, S] bool, true = may be attended to. It reads neither the masks nor the cache
/// of Context. It must not be causal. A relative bias or a NAME_mask needs all scores in memory:
/// see attend().
class Attention : public Layer, public HasHeads {
 public:
  explicit Attention(const AttentionOptions& options);
  [[nodiscard]] HeadAttention& heads() override { return attention_; }
  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const override {
    return attention_.forward_flops_per_token(seq_len);
  }
  void prepare_split(const Axis& axis) override;
  void check_split(const Axis& axis) override;
  /// Ties the table of the relative bias to that of another attention. Throws Error(kUsage) unless
  /// both have a relative bias, Error(kShape) unless both tables have the same shape.
  void tie_relative_bias(const Attention& other);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  /// The relative bias for queries q, undefined without one.
  [[nodiscard]] Tensor bias_of(const DTensor& q, const Context& context) const;
  /// The bias that hides the keys where NAME_mask is false, undefined without one.
  [[nodiscard]] Tensor cross_bias(const Context& context) const;

  AttentionOptions options_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::unique_ptr<HeadsNorm> q_norm_, k_norm_;  // null without qk_norm
  std::shared_ptr<Parameter> relative_bias_;    // the table; null without
  HeadAttention attention_;
};

}  // namespace cleave::inline nn
