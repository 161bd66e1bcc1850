#pragma once
#include <optional>

#include "cleave/nn/layer.h"

namespace cleave {

struct EmbeddingOptions {
  int64_t num_embeddings = 0;
  int64_t embedding_dim = 0;
  Init init = Init::normal(0.02);
  /// The row of padding: looking it up gives it no gradient, as torch.nn.Embedding's padding_idx (a
  /// head that is tied to the table still does). Below 0 it counts from the end. Unlike there, it
  /// starts like any other row.
  std::optional<int64_t> padding_idx{};
};

/// Rows of a table by id.
///
///   ids [B, T] int64, same on every rank   weight [V, D]   result [B, T, D]
///
/// Split by rows (Rowwise) each rank looks up the ids it holds and gives partial sums, which leave
/// the door as Replicate unless the plan says otherwise; split by columns (Colwise) it gives
/// Shard(-1). Throws Error(kShape) for an id outside [0, V).
class Embedding : public Layer {
 public:
  explicit Embedding(const EmbeddingOptions& options);
  void split_columns(const Axis& axis) override;
  void split_rows(const Axis& axis) override;
  [[nodiscard]] const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  DTensor forward(const DTensor& ids, const Context& context) override;

 private:
  [[nodiscard]] Tensor held_rows(const Tensor& ids) const;
  [[nodiscard]] Tensor whole_rows(const Tensor& ids) const;
  void check_ids(const Tensor& ids) const;
  std::shared_ptr<Parameter> weight_;
  int64_t padding_row_;  // -1: none, as at::embedding takes it
};

}  // namespace cleave
