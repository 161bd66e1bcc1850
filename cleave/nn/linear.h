#pragma once
#include <functional>

#include "cleave/nn/layer.h"

namespace cleave::inline nn {

struct LinearOptions {
  int64_t in_features = 0;   ///< whole input width
  int64_t out_features = 0;  ///< whole output width
  bool bias = true;
  bool transposed = false;  ///< weight is stored [in, out], as in GPT-2's files (Conv1D)
  Init init = Init::normal(0.02);
  Init bias_init = Init::constant(0);
  double soft_cap = 0;  ///< results become soft_cap tanh(y / soft_cap); 0: no cap
  DefaultStyle default_style = DefaultStyle::kNone;  ///< in a plan derived from the layers
  int least_bits = 4;  ///< to which inference may round the weight: 4, 8, or 16 for no rounding
};

/// A branch of low rank beside a matrix (LoRA).
struct LoraBranch {
  int64_t rank = 0;
  double scale = 1;
  double dropout = 0;  ///< probability, from 0 to less than 1, of the branch's input while training
  bool has_magnitudes = false;  ///< DoRA: the rows of the sum of both have trained magnitudes
};

/// y = x weight^T + bias.
///
///   x [.., in]   weight [out, in], or [in, out] where transposed   bias [out]   result [.., out]
///
/// Colwise: input Fanout, result Shard(-1); each rank holds weight and bias of its outputs.
/// Rowwise: input Shard(-1), result Partial inside the layer and Replicate at the module boundary,
/// unless the plan sets another output; the bias is added once, after the sum. Source: Megatron-LM,
/// arXiv:1909.08053, section 3. With a soft cap, Rowwise is Error(kShape).
class Linear : public Layer {
 public:
  explicit Linear(const LinearOptions& options);

  void split_columns(const Axis& axis) override;
  void split_rows(const Axis& axis) override;
  /// Splits used instead of near-equal ones, e.g. by whole heads. Set by the owner's prepare_split.
  void set_column_shards(const SplitPtr& split) { column_shards_ = split; }
  void set_row_shards(const SplitPtr& split) { row_shards_ = split; }

  /// Adds a branch of low rank, whose matrices are trained as an adapter (LoRA): y += scale (d(x)
  /// A^T) B^T, where d is dropout (nn/dropout.h) while context.training. Call it before the layer
  /// is split and has memory.
  ///
  ///   A [rank, in], replicated or sharded like the weight's inputs; its first values are uniform
  ///   in 1/sqrt(in), as in PEFT
  ///   B [out, rank], replicated or sharded like the weight's outputs; its first values are zeros
  ///
  /// With magnitudes m [out], sharded like B (DoRA): y = m / n (d(x) W^T + scale (d(x) A^T) B^T) +
  /// (x - d(x)) W^T, where n are the norms of the rows of W + scale B A over all ranks' parts,
  /// treated as constants by backward. The first m are the norms of the rows of W
  /// (start_magnitudes(), parallel/lora.h).
  ///
  /// Sources: Hu and others, arXiv:2106.09685; Liu and others, arXiv:2402.09353, section 4.3.
  /// Throws Error(kUsage) if there is a branch already,
  /// Error(kShape) for a rank that is not from 1 to the layer's smaller width.
  void attach_lora(const LoraBranch& branch);
  [[nodiscard]] bool has_lora() const { return lora_a_ != nullptr; }
  /// The magnitudes of the branch; null without them.
  [[nodiscard]] const std::shared_ptr<Parameter>& magnitudes() const { return magnitudes_; }
  /// Whether forward of a training step multiplies the weight a second time, with the part of x
  /// that dropout removed. That is the case with both magnitudes and dropout.
  [[nodiscard]] bool has_second_product() const { return magnitudes_ && lora_.dropout > 0; }
  /// Freezes the weight in fewer bits (Parameter::freeze_quantized); forward and backward
  /// dequantize it each time. Call it before the layer has memory.
  void freeze_quantized(QuantizedForm form) {
    weight_->freeze_quantized({.form = form, .row_dim = out_dim_});
  }

  /// Ties the weight to another layer's matrix of the same shape.
  void tie_weight(const std::shared_ptr<Parameter>& weight) { weight_ = weight; }
  [[nodiscard]] DefaultStyle default_style() const override { return default_style_; }
  [[nodiscard]] const std::shared_ptr<Parameter>& weight() const { return weight_; }
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const { return bias_; }
  /// Whether the weight is stored [in, out].
  [[nodiscard]] bool is_transposed() const { return out_dim_ == 1; }
  [[nodiscard]] bool is_column_split() const {
    return weight_->is_split() && weight_->split_dim() == out_dim_;
  }
  [[nodiscard]] bool is_row_split() const {
    return weight_->is_split() && weight_->split_dim() == in_dim_;
  }

  /// x weight^T + bias for this rank's part of the weight.
  using Product = std::function<Tensor(const Tensor& x, const std::optional<Tensor>& bias)>;
  /// From now on forward calls `product` instead of reading the weight (nn/inference_weight.h).
  void set_product(Product product) { product_ = std::move(product); }
  [[nodiscard]] bool has_product() const { return product_ != nullptr; }
  /// LinearOptions::least_bits: a router of experts keeps 16, since rounding would change the
  /// choice of experts, and the head of a model keeps 8.
  [[nodiscard]] int least_bits() const { return least_bits_; }

  /// x converted to Fanout if this layer is Colwise and its plan sets no input layout; otherwise x.
  /// A module that calls several such layers (q, k, v) on one input converts it once this way,
  /// forward and backward, instead of once per layer.
  [[nodiscard]] DTensor shared_input(const DTensor& x) const;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  /// x weight^T + bias for this rank's part of the weight, plus that of the branch.
  [[nodiscard]] Tensor product(const DTensor& x, const std::optional<Tensor>& bias,
                               const Context& context) const;
  /// The branch's input: x with dropout.
  [[nodiscard]] Tensor branch_input(const DTensor& x, const Context& context) const;
  /// Norms of the rows of the sum of weight and branch, over all ranks' parts of a row. Collective
  /// if Rowwise.
  [[nodiscard]] Tensor norms_of_sum(const Context& context) const;
  /// x weight^T + bias, without the branch.
  [[nodiscard]] Tensor main_product(const Tensor& x, const std::optional<Tensor>& bias,
                                    const Context& context) const;
  [[nodiscard]] int64_t features(int dim) const {
    return weight_->shape()[static_cast<size_t>(dim)];
  }
  [[nodiscard]] DTensor whole(const DTensor& x, const Context& context);
  [[nodiscard]] DTensor columns(const DTensor& x, const Context& context) const;
  [[nodiscard]] DTensor rows(const DTensor& x, const Context& context);

  int out_dim_, in_dim_;  // dims of weight
  DefaultStyle default_style_;
  double soft_cap_;
  int least_bits_;
  std::shared_ptr<Parameter> weight_, bias_;
  std::shared_ptr<Parameter> lora_a_, lora_b_;  // see attach_lora; null without a branch
  std::shared_ptr<Parameter> magnitudes_;       // null without magnitudes
  LoraBranch lora_;
  /// With magnitudes: sums of squares of the rows of this rank's part of the frozen weight, from
  /// the first forward on.
  mutable Tensor squares_;
  Product product_;  // see set_product
  SplitPtr column_shards_;
  SplitPtr row_shards_;
};

}  // namespace cleave::inline nn
