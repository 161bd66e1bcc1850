#pragma once
#include "cleave/kernels/cpu/int8.h"
#include "cleave/kernels/cpu/panels_linear.h"
#include "cleave/nn/layer.h"

namespace cleave {

struct LinearOptions {
  int64_t in_features = 0;   ///< whole input width
  int64_t out_features = 0;  ///< whole output width
  bool bias = true;
  bool transposed = false;  ///< weight is stored [in, out], as GPT-2's files do (Conv1D)
  Init init = Init::normal(0.02);
  Init bias_init = Init::constant(0);
};

/// y = x weight^T + bias.
///
///   x [.., in]   weight [out, in], or [in, out] where transposed   bias [out]   result [.., out]
///
/// Split by columns (Colwise) it takes Fanout and gives Shard(-1): rank r holds its outputs' part
/// of weight and bias. Split by rows (Rowwise) it takes Shard(-1) and gives partial sums, which
/// leave the door as Replicate unless the plan says otherwise; the bias is added once, after the
/// sum. Source: Megatron-LM, arXiv:1909.08053, section 3.
class Linear : public Layer {
 public:
  explicit Linear(const LinearOptions& options);

  void split_columns(const Axis& axis) override;
  void split_rows(const Axis& axis) override;
  /// Cuts decided by an owner (heads) instead of near-equal ones; set in its prepare_split.
  void set_column_cut(const Split* split) { column_cut_ = split; }
  void set_row_cut(const Split* split) { row_cut_ = split; }

  /// For tying: another layer's matrix of the same shape.
  void tie_weight(const std::shared_ptr<Parameter>& weight) { weight_ = weight; }
  [[nodiscard]] const std::shared_ptr<Parameter>& weight() const { return weight_; }
  [[nodiscard]] const std::shared_ptr<Parameter>& bias() const { return bias_; }
  [[nodiscard]] bool is_column_split() const {
    return weight_->is_split() && weight_->split_dim() == out_dim_;
  }
  [[nodiscard]] bool is_row_split() const {
    return weight_->is_split() && weight_->split_dim() == in_dim_;
  }

  /// Where the weight is stored [in, out]: from now on reads a copy that lies [out, in], which
  /// suits products of a few rows, and no longer the weight itself; only forward. Returns whether
  /// so.
  bool to_rows();
  /// From now on reads a copy of the weight in panels, where a weight has that form, and no
  /// longer the weight itself; only forward. Returns whether so.
  bool to_panels();
  /// From now on multiplies by 8-bit forms of the weight, which it no longer reads, and of each row
  /// of x; only forward. The scale of an output's weights, and of a row of x, is that of all ranks'
  /// parts together. Collective where rows are split. Throws Error(kNumerics) with the weight's
  /// name when it is not finite.
  void to_int8();

  /// x as this layer's door makes it, where it is split by columns and its plan says nothing else
  /// of its input: a module that calls several such layers on one input asks the first of them, and
  /// pays for one conversion, forward and backward, instead of one for each.
  [[nodiscard]] DTensor shared_input(const DTensor& x) const;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;
  [[nodiscard]] std::optional<Placement> accepts(const DTensor& x) const override;

 private:
  /// The largest magnitudes of rows of which each rank has a part.
  [[nodiscard]] Tensor largest_of_whole(const Tensor& rows) const;
  /// x weight^T + bias of what this rank holds.
  [[nodiscard]] Tensor product(const DTensor& x, const std::optional<Tensor>& bias,
                               const Context& context) const;
  [[nodiscard]] int64_t features(int dim) const {
    return weight_->shape()[static_cast<size_t>(dim)];
  }
  [[nodiscard]] DTensor whole(const DTensor& x, const Context& context);
  [[nodiscard]] DTensor columns(const DTensor& x, const Context& context) const;
  [[nodiscard]] DTensor rows(const DTensor& x, const Context& context);

  int out_dim_, in_dim_;  // of weight
  std::shared_ptr<Parameter> weight_, bias_;
  Tensor rows_;  // see to_rows
  std::optional<PanelMatrix> panels_;
  std::optional<Int8Matrix> int8_;
  const Split* column_cut_ = nullptr;
  const Split* row_cut_ = nullptr;
};

}  // namespace cleave
