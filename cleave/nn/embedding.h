#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

struct EmbeddingOptions {
  int64_t num_embeddings = 0;
  int64_t embedding_dim = 0;
  Init init = Init::normal(0.02);
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
  void check_ids(const Tensor& ids) const;
  std::shared_ptr<Parameter> weight_;
};

}  // namespace cleave
