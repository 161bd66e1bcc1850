#include "cleave/model/decoder/fused.h"

#include <ATen/ATen.h>

namespace cleave::inline model {

void check_split_together(const Layer& owner, const Linear& columns, const Linear& rows,
                          const char* names) {
  const bool split = columns.is_column_split();
  CLEAVE_CHECK(rows.is_row_split() == split && !columns.is_row_split() && !rows.is_column_split(),
               Code::kShape, owner.path(), ": ", names,
               " belong together; give the first the style colwise and the second rowwise, or none "
               "of them a style");
}

void check_own_columns(const Layer& owner, const Linear& columns, const DTensor& y) {
  CLEAVE_CHECK(y.placement().is_shard(y.dim() - 1) == columns.is_column_split(), Code::kShape,
               owner.path(), ": each rank works on its own columns; ", columns.path(), " gives ",
               y.placement().describe(), "; leave out its `output` in the plan");
}

FusedAttention::FusedAttention(const AttentionOptions& o)
    : qkv_proj_({.in_features = o.hidden,
                 .out_features = (o.num_heads + 2 * o.num_kv_heads) * o.head_dim,
                 .bias = o.qkv_bias,
                 .init = o.init}),
      o_proj_({.in_features = o.num_heads * o.head_dim,
               .out_features = o.hidden,
               .bias = o.out_bias,
               .init = o.out_init}),
      attention_(o),
      shard_(HeadShard::make(o.num_heads, o.num_kv_heads, o.head_dim, 1)) {
  add("qkv_proj", qkv_proj_);
  add("o_proj", o_proj_);
}

void FusedAttention::prepare_split(const Axis& axis) {
  const HeadShard shard = attention_.shard(axis);
  qkv_proj_.set_column_shards(fused_columns(shard));
  o_proj_.set_row_shards(shard.query);
}

void FusedAttention::check_split(const Axis& axis) {
  check_split_together(*this, qkv_proj_, o_proj_, "qkv_proj and o_proj");
  if (!qkv_proj_.is_column_split()) return;
  attention_.set_split(axis);
  shard_ = attention_.shard(axis);
}

DTensor FusedAttention::forward(const DTensor& x, const Context& context) {
  const DTensor qkv = qkv_proj_(x, context);
  check_own_columns(*this, qkv_proj_, qkv);
  const bool split = qkv_proj_.is_column_split();
  const int rank = split ? qkv.axis().rank() : 0;
  const int64_t query = shard_.query->width(rank);
  const int64_t kv = shard_.kv->width(rank);
  // One split makes one join of the gradients.
  const std::vector<Tensor> parts = qkv.local().split_with_sizes({query, kv, kv}, 2);
  const auto placed = [&](const Tensor& columns, const SplitPtr& part) {
    return split ? qkv.with(columns, Shard{2, part}) : qkv.with(columns);
  };
  const DTensor y = attention_(placed(parts[0], shard_.query), placed(parts[1], shard_.kv),
                               placed(parts[2], shard_.kv), path(), context);
  return o_proj_(mine(y), context);
}

FusedMlp::FusedMlp(const MlpOptions& o)
    : activation_(o.activation),
      intermediate_(o.intermediate),
      gate_up_proj_({.in_features = o.hidden,
                     .out_features = 2 * o.intermediate,
                     .bias = o.bias,
                     .init = o.init}),
      down_proj_({.in_features = o.intermediate,
                  .out_features = o.hidden,
                  .bias = o.bias,
                  .init = o.out_init}) {
  add("gate_up_proj", gate_up_proj_);
  add("down_proj", down_proj_);
}

void FusedMlp::prepare_split(const Axis& axis) {
  part_ = Split::balanced(intermediate_, axis.size());
  std::vector<std::vector<Range>> columns;
  for (int r = 0; r < axis.size(); ++r) {
    const Range gate = part_->ranges(r).front();
    columns.push_back({gate, {intermediate_ + gate.begin, intermediate_ + gate.end}});
  }
  gate_up_proj_.set_column_shards(Split::intern(2 * intermediate_, std::move(columns)));
  down_proj_.set_row_shards(part_);
}

void FusedMlp::check_split(const Axis& /*axis*/) {
  check_split_together(*this, gate_up_proj_, down_proj_, "gate_up_proj and down_proj");
}

DTensor FusedMlp::forward(const DTensor& x, const Context& context) {
  const DTensor both = gate_up_proj_(x, context);
  check_own_columns(*this, gate_up_proj_, both);
  const std::vector<Tensor> halves = both.local().chunk(2, -1);
  const Tensor product = gated(activation_, halves[0], halves[1]);
  const DTensor y = gate_up_proj_.is_column_split()
                        ? both.with(product, Shard{static_cast<int>(both.dim()) - 1, part_})
                        : both.with(product);
  return down_proj_(mine(y), context);
}

}  // namespace cleave::inline model
