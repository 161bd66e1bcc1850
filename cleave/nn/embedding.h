#pragma once
#include <optional>

#include "cleave/nn/layer.h"

namespace cleave::inline nn {

struct EmbeddingOptions {
  int64_t num_embeddings = 0;
  int64_t embedding_dim = 0;
  Init init = Init::normal(0.02);
  /// torch.nn.Embedding's padding_idx: this row is initialized to zeros, and looking it up adds no
  /// gradient to it (a head that is tied to the table still does). Negative counts from the end.
  std::optional<int64_t> padding_idx{};
  double scale = 1;  ///< factor of the rows; rounded to their type first
};

/// Looks up rows of a table by id, times `scale`.
///
///   ids [B, T] int64, same on every rank   weight [V, D]   result [B, T, D]
///
/// Rowwise: each rank looks up the ids whose rows it holds, and the result is Partial inside the
/// layer and Replicate at the module boundary, unless the plan sets another output. Colwise: the
/// result is Shard(-1). Throws Error(kShape) for an id outside [0, V).
class Embedding : public Layer {
 public:
  explicit Embedding(const EmbeddingOptions& options);
  void split_columns(const Axis& axis) override;
  void split_rows(const Axis& axis) override;
  [[nodiscard]] DefaultStyle default_style() const override { return DefaultStyle::kRowwise; }
  [[nodiscard]] double forward_flops_per_token(int64_t /*seq_len*/) const override { return 0; }
  /// Ties the weight to another layer's matrix of the same shape.
  void tie_weight(const std::shared_ptr<Parameter>& weight) { weight_ = weight; }
  [[nodiscard]] const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// Inference with a table that is stored in a narrower type than the activations: rows are
  /// converted to `type` when they are looked up. Without it they have the table's type.
  void set_row_type(at::ScalarType type) { row_type_ = type; }

 protected:
  DTensor forward(const DTensor& ids, const Context& context) override;

 private:
  [[nodiscard]] Tensor held_rows(const Tensor& ids) const;
  [[nodiscard]] Tensor whole_rows(const Tensor& ids) const;
  /// Rows of this rank's part of the table; `padding`: as padding_row_, in this part.
  [[nodiscard]] Tensor rows_of(const Tensor& ids, int64_t padding) const;
  [[nodiscard]] Tensor in_row_type(const Tensor& rows) const;
  void check_ids(const Tensor& ids) const;
  std::shared_ptr<Parameter> weight_;
  int64_t padding_row_;  // -1: none, as in at::embedding
  double scale_;
  std::optional<at::ScalarType> row_type_;  // see set_row_type
};

}  // namespace cleave::inline nn
