#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/compat/internal/nxd.h"
#include "cleave/compat/nxd.h"

namespace cleave::nxd {
namespace {

Init uniform_of(int64_t input_size) {
  return Init::uniform(1 / std::sqrt(static_cast<double>(std::max<int64_t>(input_size, 1))));
}

/// Options of the linear layer, without a bias that the caller adds (skip_bias_add).
template <class Options>
LinearOptions linear_options(int64_t input_size, int64_t output_size, const Options& o) {
  const Init usual = uniform_of(input_size);
  return {.in_features = input_size,
          .out_features = output_size,
          .bias = o.bias && !o.skip_bias_add,
          .init = o.init_method.value_or(usual),
          .bias_init = usual};
}

template <class Options>
void check_options(const std::string& title, const Options& o) {
  CLEAVE_CHECK(!o.keep_master_weight, Code::kUsage, title,
               ": keep_master_weight=true is not supported: no rank holds a whole weight, and "
               "checkpoints hold it whole and load on any number of ranks; omit it");
  CLEAVE_CHECK(
      !o.pad, Code::kUsage, title,
      ": pad=true is not supported: sizes need not be divisible by the number of ranks; omit it");
  CLEAVE_CHECK(o.stride >= 1, Code::kUsage, title, ": stride=", o.stride, "; expected at least 1");
}

/// The split of `stride` matrices that lie side by side, each sharded by itself.
SplitPtr strided(const std::string& title, int64_t whole, int64_t stride, int num_ranks) {
  CLEAVE_CHECK(whole % stride == 0, Code::kShape, title, ": ", whole,
               " does not consist of stride=", stride, " equal parts");
  const int64_t part = whole / stride;
  const SplitPtr one = Split::balanced(part, num_ranks);
  std::vector<std::vector<Range>> ranges(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int64_t s = 0; s < stride; ++s) {
      for (const Range& r : one->ranges(rank)) {
        ranges[static_cast<size_t>(rank)].push_back({s * part + r.begin, s * part + r.end});
      }
    }
  }
  return stride == 1 ? one : Split::intern(whole, std::move(ranges));
}

/// The sequence dim; by default T of [.., T, D].
Shard along_sequence(const std::optional<int64_t>& sequence_dimension) {
  return Shard{static_cast<int>(sequence_dimension.value_or(-2))};
}

template <class L>
void check_call(const L& layer, const Tensor& x) {
  CLEAVE_CHECK(x.dim() >= 2, Code::kShape, layer.title(), ": the input has shape ", x.sizes(),
               "; expected [.., tokens, width]");
  CLEAVE_CHECK(layer.weight()->leaf().defined(), Code::kUsage, layer.title(),
               " has no memory yet; call move_model_to_device(model, device) or load a checkpoint");
}

void allocate_all(Layer& layer, uint64_t seed, at::ScalarType dtype) {
  for (const auto& p : layer.parameters()) {
    const bool is_here = p->ownership() != Parameter::Ownership::kNotOwned;
    if (is_here && !p->leaf().defined()) p->set_leaf(p->initial_value(seed, dtype));
  }
}

HeadShards shard_heads(const std::string& title, int64_t width, int64_t n_heads, int64_t n_padded,
                       int num_ranks) {
  CLEAVE_CHECK(width % n_heads == 0, Code::kShape, title, ": a width of ", width,
               " does not consist of n_heads=", n_heads,
               " equal heads; name the attention classes in wrapped_classes");
  const int64_t unit = width / n_heads;
  const int64_t each = n_padded / num_ranks;
  std::vector<std::vector<Range>> real;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int64_t begin = std::min(rank * each, n_heads);
    real.push_back({{begin * unit, std::min(begin + each, n_heads) * unit}});
  }
  return {.real = Split::intern(width, std::move(real)),
          .padded = Split::balanced(n_padded * unit, num_ranks)};
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(int64_t input_size, int64_t output_size,
                                           const ColumnParallelLinearOptions& o)
    : Linear(linear_options(input_size, output_size, o)),
      ParallelLayer(o.tensor_model_parallel_group, o.dtype, o.device),
      options_(o) {
  check_options(title(), o);
  CLEAVE_CHECK(!o.gather_output || !o.sequence_parallel_enabled, Code::kUsage, title(),
               ": gather_output and sequence_parallel_enabled exclude each other; set "
               "gather_output=false");
  const SplitPtr columns = strided(title(), output_size, o.stride, group_.size());
  set_column_shards(columns);
  split_columns(group_);
  if (o.gather_output) set_output_layout(Replicate{});
  if (!o.bias || !o.skip_bias_add) return;
  skipped_bias_ =
      std::make_shared<Parameter>(std::vector<int64_t>{output_size}, uniform_of(input_size));
  if (o.gather_output) {
    skipped_bias_->replicate(group_);
  } else {
    skipped_bias_->shard(group_, 0, columns);
  }
  add("bias", skipped_bias_);
}

std::string ColumnParallelLinear::title() const {
  return str(path(), path().empty() ? "" : ": ", "ColumnParallelLinear(", weight()->shape()[1],
             ", ", weight()->shape()[0], ")");
}

const std::shared_ptr<Parameter>& ColumnParallelLinear::bias() const {
  return skipped_bias_ ? skipped_bias_ : Linear::bias();
}

void ColumnParallelLinear::allocate(uint64_t seed) {
  allocate_all(*this, seed, dtype_);
}

Tensor ColumnParallelLinear::operator()(const Tensor& x) {
  check_call(*this, x);
  const DTensor in =
      options_.sequence_parallel_enabled
          ? as_sharded(x, group_, along_sequence(options_.sequence_dimension).dim, "column input")
          : DTensor(x, group_, Replicate{});
  const DTensor y = (*this)(in, Context());
  CLEAVE_CHECK(options_.gather_output || !y.is_split() || y.placement().is_shard(y.dim() - 1),
               Code::kShape, title(),
               ": its weight is tied to a weight that is not sharded by rows, so "
               "the result is ",
               y.placement().describe(),
               ", not this rank's columns; tie it to a "
               "ParallelEmbedding without shard_across_embedding, or set gather_output=true");
  return y.local();
}

DTensor ColumnParallelLinear::forward(const DTensor& x, const Context& context) {
  DTensor y = Linear::forward(x, context);
  if (heads_.padded == nullptr || !y.is_split()) return y;
  const int64_t missing = heads_.padded->width(group_.rank()) - y.local().size(-1);
  return y.with(at::constant_pad_nd(y.local(), {0, missing}),
                Shard{static_cast<int>(y.dim()) - 1, heads_.padded});
}

HeadShards ColumnParallelLinear::head_shards(int64_t n_heads, int64_t n_padded) const {
  CLEAVE_CHECK(!options_.gather_output, Code::kShape, title(),
               ": with gather_output its output is whole, as in a vocabulary projection; padding "
               "would add classes and change the loss; name the attention classes in "
               "wrapped_classes");
  CLEAVE_CHECK(options_.stride == 1, Code::kShape, title(), ": stride=", options_.stride,
               " fuses matrices; padding of heads needs separate matrices, with stride=1");
  CLEAVE_CHECK(!skipped_bias_, Code::kShape, title(),
               ": with skip_bias_add the caller adds the bias, which has no elements for padded "
               "heads; omit skip_bias_add");
  return shard_heads(title(), weight()->shape()[0], n_heads, n_padded, group_.size());
}

void ColumnParallelLinear::set_head_shards(const HeadShards& shards) {
  weight()->change_split(shards.real);
  if (bias()) bias()->change_split(shards.real);
  heads_ = shards;
}

RowParallelLinear::RowParallelLinear(int64_t input_size, int64_t output_size,
                                     const RowParallelLinearOptions& o)
    : Linear(linear_options(input_size, output_size, o)),
      ParallelLayer(o.tensor_model_parallel_group, o.dtype, o.device),
      options_(o) {
  check_options(title(), o);
  CLEAVE_CHECK(!o.sequence_parallel_enabled || o.input_is_parallel, Code::kUsage, title(),
               ": sequence_parallel_enabled needs input_is_parallel=true");
  CLEAVE_CHECK(o.reduce_output || !o.bias || o.skip_bias_add, Code::kUsage, title(),
               ": with reduce_output=false every rank would add the bias; set bias=false or "
               "skip_bias_add=true");
  CLEAVE_CHECK(o.reduce_output || !o.sequence_parallel_enabled, Code::kUsage, title(),
               ": reduce_output=false leaves no sum to shard; set sequence_parallel_enabled=false");
  set_row_shards(strided(title(), input_size, o.stride, group_.size()));
  if (o.sequence_parallel_enabled) set_output_layout(along_sequence(o.sequence_dimension));
  if (!o.reduce_output) set_output_layout(Partial{});
  split_rows(group_);
  if (!o.bias || !o.skip_bias_add) return;
  skipped_bias_ =
      std::make_shared<Parameter>(std::vector<int64_t>{output_size}, uniform_of(input_size));
  skipped_bias_->replicate(group_);
  add("bias", skipped_bias_);
}

std::string RowParallelLinear::title() const {
  return str(path(), path().empty() ? "" : ": ", "RowParallelLinear(", weight()->shape()[1], ", ",
             weight()->shape()[0], ")");
}

const std::shared_ptr<Parameter>& RowParallelLinear::bias() const {
  return skipped_bias_ ? skipped_bias_ : Linear::bias();
}

void RowParallelLinear::allocate(uint64_t seed) {
  allocate_all(*this, seed, dtype_);
}

Tensor RowParallelLinear::operator()(const Tensor& x) {
  check_call(*this, x);
  const bool is_sharded = options_.input_is_parallel && group_.size() > 1;
  const SplitPtr columns = heads_.padded != nullptr ? heads_.padded : weight()->placement().split();
  const int64_t width = is_sharded ? columns->width(group_.rank()) : weight()->shape()[1];
  CLEAVE_CHECK(x.size(-1) == width, Code::kShape, title(), ": rank ", group_.rank(), " takes ",
               width, is_sharded ? " columns, its shard (input_is_parallel)" : " columns",
               "; the input has shape ", x.sizes());
  if (!is_sharded) return (*this)(DTensor(x, group_, Replicate{}), Context()).local();
  const Shard last{static_cast<int>(x.dim()) - 1, columns};
  return (*this)(DTensor(x, group_, last), Context()).local();
}

std::optional<Placement> RowParallelLinear::accepts(const DTensor& x) const {
  if (heads_.padded == nullptr || !is_row_split()) return Linear::accepts(x);
  return Shard{static_cast<int>(x.dim()) - 1, heads_.padded};
}

DTensor RowParallelLinear::forward(const DTensor& x, const Context& context) {
  DTensor in = x;
  if (heads_.padded != nullptr && x.is_split()) {
    const int64_t real = heads_.real->width(group_.rank());
    in = x.with(x.local().narrow(-1, 0, real), Shard{static_cast<int>(x.dim()) - 1, heads_.real});
  }
  DTensor y = Linear::forward(in, context);
  if (!skipped_bias_ || !y.is_split() || !options_.reduce_output) return y;
  // The caller adds the bias to the layer's output, so that layout determines its gradient.
  DTensor out = y.redistribute(*output_layout());
  skipped_bias_->used_in(out);
  return out;
}

HeadShards RowParallelLinear::head_shards(int64_t n_heads, int64_t n_padded) const {
  CLEAVE_CHECK(options_.stride == 1, Code::kShape, title(), ": stride=", options_.stride,
               " fuses matrices; padding of heads needs separate matrices, with stride=1");
  return shard_heads(title(), weight()->shape()[1], n_heads, n_padded, group_.size());
}

void RowParallelLinear::set_head_shards(const HeadShards& shards) {
  weight()->change_split(shards.real);
  heads_ = shards;
}

ParallelEmbedding::ParallelEmbedding(int64_t num_embeddings, int64_t embedding_dim,
                                     const ParallelEmbeddingOptions& o)
    : Embedding({.num_embeddings = num_embeddings,
                 .embedding_dim = embedding_dim,
                 .init = o.init_method,
                 .padding_idx = o.padding_idx}),
      ParallelLayer(o.tensor_model_parallel_group, o.dtype, o.device) {
  CLEAVE_CHECK(o.collect_output || !o.sequence_parallel_enabled, Code::kUsage, "ParallelEmbedding(",
               num_embeddings, ", ", embedding_dim,
               "): collect_output=false leaves no sum to shard; set "
               "sequence_parallel_enabled=false");
  if (o.sequence_parallel_enabled) {
    set_output_layout(along_sequence(o.sequence_dimension));
  } else if (o.collect_output) {
    set_output_layout(Replicate{});
  } else if (!o.shard_across_embedding) {
    set_output_layout(Partial{});
  }
  if (o.shard_across_embedding) {
    split_columns(group_);
  } else {
    split_rows(group_);
  }
}

void ParallelEmbedding::allocate(uint64_t seed) {
  allocate_all(*this, seed, dtype_);
}

Tensor ParallelEmbedding::operator()(const Tensor& ids) {
  return (*this)(DTensor(ids, group_, Replicate{}), Context()).local();
}

Tensor call(Layer& layer, const Tensor& x, const Context& context) {
  const DTensor y = layer(DTensor(x, get_tensor_model_parallel_group(), Replicate{}), context);
  CLEAVE_CHECK(y.placement().is_replicate(), Code::kShape, layer.path(), " is sharded and returns ",
               y.placement().describe(), "; call() is for layers that are replicated");
  return y.local();
}

Tensor call_on_tokens(Layer& layer, const Tensor& x, const Context& context,
                      std::optional<int64_t> sequence_dimension) {
  const DTensor in = as_sharded(x, get_tensor_model_parallel_group(),
                                along_sequence(sequence_dimension).dim, "call_on_tokens");
  const DTensor y = layer(in, context);
  CLEAVE_CHECK(y.placement().matches(in.placement()), Code::kShape, layer.path(), " returns ",
               y.placement().describe(), " of ", in.placement().describe(),
               "; call_on_tokens() is for layers that compute each token by itself");
  return y.local();
}

}  // namespace cleave::nxd
