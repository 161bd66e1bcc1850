#pragma once
#include "cleave/nn/attention.h"
#include "cleave/nn/mlp.h"

namespace cleave::inline model {

/// Throws Error(kShape) naming `names` unless `columns` has the style Colwise and `rows` Rowwise,
/// or neither has a style.
void check_split_together(const Layer& owner, const Linear& columns, const Linear& rows,
                          const char* names);

/// Throws Error(kShape) unless `y`, the output of `columns`, is this rank's columns.
void check_own_columns(const Layer& owner, const Linear& columns, const DTensor& y);

/// Self-attention whose queries, keys and values are columns of one matrix, qkv_proj, in this
/// order; o_proj is the output projection. No qk_norm.
///
///   x [B, T, D]   result [B, T, D]
///
/// Under tp as Attention: each rank has the columns of its heads.
class FusedAttention : public Layer, public HasHeads {
 public:
  explicit FusedAttention(const AttentionOptions& options);
  [[nodiscard]] HeadAttention& heads() override { return attention_; }
  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const override {
    return attention_.forward_flops_per_token(seq_len);
  }
  void prepare_split(const Axis& axis) override;
  void check_split(const Axis& axis) override;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  Linear qkv_proj_, o_proj_;
  HeadAttention attention_;
  HeadShard shard_;  // of the axis, else of one rank
};

/// down_proj(act(gate) * up) with gate and up as columns of one matrix, gate_up_proj, in this
/// order.
///
///   x [.., D]   result [.., D]
class FusedMlp : public Layer {
 public:
  explicit FusedMlp(const MlpOptions& options);
  void prepare_split(const Axis& axis) override;
  void check_split(const Axis& axis) override;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  Activation activation_;
  int64_t intermediate_;
  Linear gate_up_proj_, down_proj_;
  SplitPtr part_;  // of gate, and of up
};

}  // namespace cleave::inline model
