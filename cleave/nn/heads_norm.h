#pragma once
#include "cleave/nn/layer.h"
#include "cleave/nn/layer_options.h"

namespace cleave::inline nn {

/// The RMS norm of queries or keys: x / rms(x) * (weight + offset).
///
///   x [B, T, H*K], Replicate or Shard(2) by whole heads   result as x
///   weight [K] for each head (kEachHead), or [H*K] over all heads (kAllHeads); at first 1 - offset
///
/// kAllHeads under tp takes the style Colwise: each rank holds the weight of its heads, and the sum
/// of squares is over all ranks. A head that several ranks hold counts once.
class HeadsNorm : public Layer {
 public:
  /// `kind` is not kNone.
  HeadsNorm(QkNorm kind, int64_t num_heads, int64_t head_dim, double eps, double offset = 0);

  /// kAllHeads: shards the weight by set_shards(), else in near-equal shards.
  void split_columns(const Axis& axis) override;
  [[nodiscard]] DefaultStyle default_style() const override {
    return kind_ == QkNorm::kAllHeads ? DefaultStyle::kColwise : DefaultStyle::kNone;
  }
  /// The split of x, e.g. by whole heads. Set by the owner's prepare_split.
  void set_shards(const SplitPtr& split) { shards_ = split; }
  /// Whether x must be sharded as the weight is.
  [[nodiscard]] bool is_split() const { return weight_->is_split(); }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  /// kAllHeads on this rank's heads.
  [[nodiscard]] Tensor over_ranks(const DTensor& x) const;

  QkNorm kind_;
  int64_t head_dim_;
  double eps_, offset_;
  std::shared_ptr<Parameter> weight_;
  SplitPtr shards_;
};

}  // namespace cleave::inline nn
