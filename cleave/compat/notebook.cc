#include "cleave/compat/notebook.h"

namespace cleave::notebook {
namespace {

AttentionOptions attention_options(int64_t dim, int64_t heads) {
  CLEAVE_CHECK(heads >= 1 && dim % heads == 0, Code::kShape, "dim=", dim, " does not consist of ",
               heads, " equal heads; choose heads that divide it");
  return {.hidden = dim,
          .num_heads = heads,
          .num_kv_heads = heads,
          .head_dim = dim / heads,
          .causal = false,
          .rotary = {}};
}

}  // namespace

MultiHeadSelfAttention::MultiHeadSelfAttention(int64_t dim, int64_t heads, bool bias,
                                               at::ScalarType dtype)
    : query_(dim, dim, {.bias = bias, .gather_output = false, .dtype = dtype}),
      key_(dim, dim, {.bias = bias, .gather_output = false, .dtype = dtype}),
      value_(dim, dim, {.bias = bias, .gather_output = false, .dtype = dtype}),
      attention_(attention_options(dim, heads)),
      output_(dim, dim, {.bias = bias, .input_is_parallel = true, .dtype = dtype}) {
  add("query", query_);
  add("key", key_);
  add("value", value_);
  add("output", output_);
  // Columns are sharded in whole heads.
  const nxd::HeadShards shards{.real = attention_.shard(tp_grp()).query};
  for (nxd::ColumnParallelLinear* projection : {&query_, &key_, &value_}) {
    projection->set_head_shards(shards);
  }
  output_.set_head_shards(shards);
  attention_.set_split(tp_grp());
}

Tensor MultiHeadSelfAttention::operator()(const Tensor& x, const Context& context) {
  const DTensor in(x, tp_grp(), Replicate{});
  const DTensor heads =
      attention_(query_(in, context), key_(in, context), value_(in, context), path(), context);
  return output_(heads, context).local();
}

FeedForwardBlock::FeedForwardBlock(const FeedForwardOptions& o)
    : activation_(o.activation),
      first_(o.in_features, o.hidden_features, o.bias, o.dtype),
      second_(o.hidden_features, o.out_features, o.bias, o.dtype) {
  add("first", first_);
  add("second", second_);
}

Tensor FeedForwardBlock::operator()(const Tensor& x) {
  return second_(activate(activation_, first_(x)));
}

ColRowLinearPair::ColRowLinearPair(const FeedForwardOptions& o)
    : activation_(o.activation),
      first_(o.in_features, o.hidden_features,
             {.bias = o.bias, .gather_output = false, .dtype = o.dtype}),
      second_(o.hidden_features, o.out_features,
              {.bias = o.bias, .input_is_parallel = true, .dtype = o.dtype}) {
  add("first", first_);
  add("second", second_);
}

Tensor ColRowLinearPair::operator()(const Tensor& x) {
  return second_(activate(activation_, first_(x)));
}

}  // namespace cleave::notebook
