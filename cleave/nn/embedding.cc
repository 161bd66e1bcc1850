#include "cleave/nn/embedding.h"

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/embedding.h"
#include "cleave/nn/ids.h"
#include "cleave/nn/subject.h"

namespace cleave::inline nn {
namespace {

int64_t padding_row_of(const EmbeddingOptions& options) {
  if (!options.padding_idx) return -1;
  const int64_t index = *options.padding_idx;
  const int64_t rows = options.num_embeddings;
  CLEAVE_CHECK(index >= -rows && index < rows, Code::kShape, "Embedding(num_embeddings=", rows,
               ", padding_idx=", index, "); padding_idx must be in [", -rows, ", ", rows, ")");
  return index < 0 ? index + rows : index;
}

}  // namespace

Embedding::Embedding(const EmbeddingOptions& options)
    : padding_row_(padding_row_of(options)), scale_(options.scale) {
  CLEAVE_CHECK(options.num_embeddings > 0 && options.embedding_dim > 0, Code::kShape,
               "Embedding(num_embeddings=", options.num_embeddings,
               ", embedding_dim=", options.embedding_dim, "); both must be positive");
  Init init = options.init;
  init.zero_row = padding_row_;
  weight_ = std::make_shared<Parameter>(
      std::vector<int64_t>{options.num_embeddings, options.embedding_dim}, init);
  add("weight", weight_);
}

void Embedding::split_columns(const Axis& axis) {
  weight_->shard(axis, 1, Split::balanced(weight_->shape()[1], axis.size()));
}

void Embedding::split_rows(const Axis& axis) {
  weight_->shard(axis, 0, Split::balanced(weight_->shape()[0], axis.size()));
  if (!output_layout()) set_output_layout(Replicate{});
}

void check_ids(const Tensor& ids, int64_t num_rows, const std::string& who) {
  if (ids.numel() == 0) return;
  const auto [low, high] = ids.aminmax();
  const int64_t wrong = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
  CLEAVE_CHECK(wrong >= 0 && wrong < num_rows, Code::kShape, who, "id ", wrong, " is outside [0, ",
               num_rows, "); check that the tokenizer matches the model");
}

void Embedding::check_ids(const Tensor& ids) const {
  if (ids.is_cpu()) nn::check_ids(ids, weight_->shape()[0], subject(path()));
}

Tensor Embedding::held_rows(const Tensor& ids) const {
  const Range held = weight_->ranges().front();
  if (held.size() == 0) {
    // No rows: zeros connected to the weight, so that this rank also runs backward's collectives.
    auto shape = ids.sizes().vec();
    shape.push_back(weight_->shape()[1]);
    return in_row_type(at::zeros(shape, weight_->use().options()) + weight_->use().sum());
  }
  const Tensor local = ids - held.begin;
  const Tensor away = (ids < held.begin).bitwise_or_(ids >= held.end);
  const bool holds_padding = held.begin <= padding_row_ && padding_row_ < held.end;
  const int64_t padding = holds_padding ? padding_row_ - held.begin : -1;
  // masked_fill, not multiplication: the row that stands in, or its gradient, may not be finite.
  return rows_of(local.clamp(0, held.size() - 1), padding).masked_fill_(away.unsqueeze(-1), 0);
}

Tensor Embedding::whole_rows(const Tensor& ids) const {
  return rows_of(ids, padding_row_);
}

Tensor Embedding::rows_of(const Tensor& ids, int64_t padding) const {
  const Tensor rows = in_row_type(embedding_rows(weight_->use(), ids, padding));
  return scale_ == 1 ? rows : rows * at::scalar_tensor(scale_, rows.options());
}

Tensor Embedding::in_row_type(const Tensor& rows) const {
  return row_type_ ? rows.to(*row_type_) : rows;
}

DTensor Embedding::forward(const DTensor& ids, const Context& /*context*/) {
  check_ids(ids.local());
  if (!weight_->is_split()) {
    weight_->used_in(ids);
    return ids.with(whole_rows(ids.local()));
  }
  CLEAVE_CHECK(ids.placement().is_whole(), Code::kShape, subject(path()),
               "a sharded table needs whole ids; it got ", ids.placement().describe(), " made by ",
               ids.maker());
  if (weight_->split_dim() == 0) return ids.with(held_rows(ids.local()), Partial{});
  return ids.with(whole_rows(ids.local()),
                  Shard{static_cast<int>(ids.dim()), weight_->placement().split()});
}

}  // namespace cleave::inline nn
