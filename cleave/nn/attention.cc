#include "cleave/nn/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/kernels/decode.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/kv_cache.h"
#include "cleave/nn/subject.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {
namespace {

/// Rotates the first dims of each head if `angles` are of fewer than all.
Tensor rotate_part(const Tensor& x, const RotaryAngles& angles) {
  const int64_t dims = 2 * angles.cos.size(-1);
  if (dims == x.size(3)) return apply_rotary(x, angles);
  return at::cat({apply_rotary(x.narrow(3, 0, dims), angles), x.slice(3, dims)}, 3);
}

/// [B, T, H*K] -> [B, H, T, K]
Tensor heads_first(const Tensor& t, int64_t head_dim) {
  return t.view({t.size(0), t.size(1), t.size(2) / head_dim, head_dim}).transpose(1, 2);
}

}  // namespace

double HeadAttention::forward_flops_per_token(int64_t seq_len) const {
  // Two products with the keys that a query sees: all, or with a causal mask half on average, or
  // fewer with a window.
  const auto length = static_cast<double>(seq_len);
  double keys = options_.causal ? length / 2 : length;
  if (options_.window > 0 && options_.window < seq_len) {
    const double unseen = length - static_cast<double>(options_.window);
    keys -= unseen * unseen / (2 * length);
  }
  return 4 * keys * static_cast<double>(options_.num_heads * options_.head_dim);
}

HeadAttention::HeadAttention(const AttentionOptions& o) : options_(o) {
  if (o.rotary) rotary_.emplace(*o.rotary);
  const HeadShard whole = HeadShard::make(o.num_heads, o.num_kv_heads, o.head_dim, 1);
  kv_head_ = kv_head_of(whole, o.num_heads, o.num_kv_heads, 0);
}

HeadShard HeadAttention::shard(const Axis& axis) const {
  return HeadShard::make(options_.num_heads, options_.num_kv_heads, options_.head_dim, axis.size());
}

void HeadAttention::set_split(const Axis& axis) {
  const HeadShard shards = shard(axis);
  kv_head_ = kv_head_of(shards, options_.num_heads, options_.num_kv_heads, axis.rank());
  const int64_t first_head = shards.query->ranges(axis.rank()).front().begin / options_.head_dim;
  skipped_ = first_head % (options_.num_heads / options_.num_kv_heads);
}

void HeadAttention::cast_kv_bf16() {
  if (is_on(Kernel::kAttention) && options_.head_dim % 16 == 0) key_type_ = at::kBFloat16;
}

AttentionDropout HeadAttention::dropout_of(const DTensor& q, const std::string& path,
                                           const Context& context) const {
  if (!context.training || options_.dropout == 0) return {};
  int64_t first_head = 0;
  if (q.placement().is_shard()) {
    const Range columns = q.placement().split()->ranges(q.axis().rank()).front();
    first_head = columns.begin / options_.head_dim;
  }
  return {.p = options_.dropout,
          .key = dropout_key(path, context),
          .step = static_cast<uint64_t>(context.step),
          .first_sample = context.first_sample,
          .num_heads = options_.num_heads,
          .first_head = first_head};
}

void HeadAttention::rotate(Tensor& q, Tensor& k, int64_t past, const std::string& path,
                           const Context& context) {
  const int64_t end = past + q.size(2);
  CLEAVE_CHECK(past == 0 || rotary_->is_long(past) == rotary_->is_long(end), Code::kShape,
               subject(path), "the rotary frequencies change after ",
               options_.rotary->original_positions,
               " tokens, and the cached keys have those of shorter sequences; generate fewer "
               "tokens, or begin with a longer prompt");
  const RotaryAngles angles = context.positions.defined() ? rotary_->angles(context.positions, q)
                                                          : rotary_->angles(Range{past, end}, q);
  q = rotate_part(q, angles);
  k = rotate_part(k, angles);
}

Tensor HeadAttention::decoded(const Tensor& q, const Tensor& k, const Tensor& v,
                              const std::string& path, const Context& context) {
  const auto [keys, values] = context.cache->storage(path);
  if (!takes_decode_attention(q, keys.scalar_type())) {
    CLEAVE_BUG(path, ": no kernel for queries ", q.sizes(), " and keys of ", keys.scalar_type());
  }
  const RotaryAngles angles =
      rotary_ ? rotary_->angles(Range{0, context.cache->capacity()}, q) : RotaryAngles{};
  const double divisor = options_.score_divisor > 0
                             ? options_.score_divisor
                             : std::sqrt(static_cast<double>(options_.head_dim));
  return decode_attention(q, k, v,
                          {.keys = keys,
                           .values = values,
                           .cos = angles.cos,
                           .sin = angles.sin,
                           .positions = context.positions,
                           .num_keys = context.num_keys,
                           .first_key = context.first_key,
                           .group = options_.num_heads / options_.num_kv_heads,
                           .skipped = skipped_,
                           .window = options_.window,
                           .divisor = divisor,
                           .soft_cap = options_.soft_cap});
}

DTensor HeadAttention::operator()(const DTensor& q, const DTensor& k, const DTensor& v,
                                  const std::string& path, const Context& context,
                                  const Tensor& bias) {
  split_work({&q, &k, &v});
  CLEAVE_CHECK(q.placement().is_whole() || q.placement().is_shard(2), Code::kShape, subject(path),
               "attention needs every token on each rank; q, k and v are ",
               q.placement().describe(), " made by ", q.maker(),
               "; give the projections the style colwise");
  Tensor q_BHTK = heads_first(q.local(), options_.head_dim);
  Tensor k_BGTK = heads_first(k.local(), options_.head_dim);
  Tensor v_BGTK = heads_first(v.local(), options_.head_dim);
  if (context.num_keys.defined()) {
    return q.with(decoded(q_BHTK, k_BGTK, v_BGTK, path, context).transpose(1, 2).flatten(2));
  }
  const int64_t past = context.cache != nullptr ? context.cache->length(path) : 0;
  if (rotary_) rotate(q_BHTK, k_BGTK, past, path, context);
  const at::ScalarType key_type = key_type_.value_or(k_BGTK.scalar_type());
  if (context.cache != nullptr) {
    std::tie(k_BGTK, v_BGTK) = context.cache->extend(path, k_BGTK, v_BGTK, key_type);
  } else {
    k_BGTK = stored_as(k_BGTK, key_type);
    v_BGTK = stored_as(v_BGTK, key_type);
  }
  const AttendOptions attend_options{.causal = options_.causal,
                                     .window = options_.window,
                                     .kv_head = kv_head_,
                                     .dropout = dropout_of(q, path, context),
                                     .score_divisor = options_.score_divisor,
                                     .soft_cap = options_.soft_cap};
  const auto attention = [attend_options, context](const torch::autograd::variable_list& in) {
    AttendOptions own = attend_options;
    own.bias = in[3];
    return attend(in[0], in[1], in[2], own, context);
  };
  const bool keeps_scores =
      bias.defined() || !uses_fast_attention(q_BHTK, k_BGTK, v_BGTK, attend_options);
  const torch::autograd::variable_list inputs{q_BHTK, k_BGTK, v_BGTK, bias};
  const Tensor out_BHTK = context.recompute_attention && keeps_scores
                              ? recomputed("attention", inputs, attention)
                              : attention(inputs);
  return q.with(out_BHTK.transpose(1, 2).flatten(2));
}

Attention::Attention(const AttentionOptions& o)
    : options_(o),
      q_proj_({.in_features = o.hidden,
               .out_features = o.num_heads * o.head_dim,
               .bias = o.qkv_bias,
               .init = o.init,
               .default_style = DefaultStyle::kColwise}),
      k_proj_({.in_features = o.hidden,
               .out_features = o.num_kv_heads * o.head_dim,
               .bias = o.qkv_bias,
               .init = o.init,
               .default_style = DefaultStyle::kColwise}),
      v_proj_({.in_features = o.hidden,
               .out_features = o.num_kv_heads * o.head_dim,
               .bias = o.qkv_bias,
               .init = o.init,
               .default_style = DefaultStyle::kColwise}),
      o_proj_({.in_features = o.num_heads * o.head_dim,
               .out_features = o.hidden,
               .bias = o.out_bias,
               .init = o.out_init,
               .default_style = DefaultStyle::kRowwise}),
      attention_(o) {
  add("q_proj", q_proj_, "wq");
  add("k_proj", k_proj_, "wk");
  add("v_proj", v_proj_, "wv");
  add("o_proj", o_proj_, "wo");
  const bool crosses = !o.keys_from.empty();
  CLEAVE_CHECK(
      !crosses || !(o.causal || o.rotary || o.window > 0 || o.relative_bias), Code::kUsage,
      "cross-attention to '", o.keys_from,
      "' has queries and keys of two sequences; set causal=false, and leave out rotary, window "
      "and relative_bias");
  if (o.relative_bias) {
    check_relative_bias(*o.relative_bias, o.causal);
    relative_bias_ = std::make_shared<Parameter>(
        std::vector<int64_t>{o.relative_bias->num_buckets, o.num_heads}, Init::normal(0.02));
    add("relative_attention_bias.weight", relative_bias_);
  }
  if (o.qk_norm == QkNorm::kNone) return;
  q_norm_ =
      std::make_unique<HeadsNorm>(o.qk_norm, o.num_heads, o.head_dim, o.norm_eps, o.norm_offset);
  k_norm_ =
      std::make_unique<HeadsNorm>(o.qk_norm, o.num_kv_heads, o.head_dim, o.norm_eps, o.norm_offset);
  add("q_norm", *q_norm_);
  add("k_norm", *k_norm_);
}

void Attention::prepare_split(const Axis& axis) {
  const HeadShard shard = attention_.shard(axis);
  q_proj_.set_column_shards(shard.query);
  k_proj_.set_column_shards(shard.kv);
  v_proj_.set_column_shards(shard.kv);
  o_proj_.set_row_shards(shard.query);
  if (!q_norm_) return;
  q_norm_->set_shards(shard.query);
  k_norm_->set_shards(shard.kv);
}

void Attention::check_split(const Axis& axis) {
  const bool split = q_proj_.is_column_split();
  const bool together = k_proj_.is_column_split() == split && v_proj_.is_column_split() == split &&
                        o_proj_.is_row_split() == split && !o_proj_.is_column_split();
  CLEAVE_CHECK(
      together, Code::kShape, path(),
      ": q_proj, k_proj, v_proj and o_proj belong together; give the first three the style "
      "colwise and o_proj rowwise, or give none of them a style");
  if (!split) return;
  attention_.set_split(axis);
  if (relative_bias_) {
    relative_bias_->shard(axis, 1, Split::balanced(options_.num_heads, axis.size()));
  }
}

void Attention::tie_relative_bias(const Attention& other) {
  CLEAVE_CHECK(relative_bias_ && other.relative_bias_, Code::kUsage, subject(path()),
               "tie_relative_bias needs two attentions with a relative bias, and ",
               relative_bias_ ? "the other one" : "this one",
               " has none; set relative_bias in the options of both");
  CLEAVE_CHECK(relative_bias_->shape() == other.relative_bias_->shape(), Code::kShape,
               subject(path()), "its table of the relative bias is [",
               list_text(relative_bias_->shape()), "], the other one [",
               list_text(other.relative_bias_->shape()), "]; give both the same options");
  relative_bias_ = other.relative_bias_;
}

Tensor Attention::bias_of(const DTensor& q, const Context& context) const {
  if (!relative_bias_) return {};
  relative_bias_->used_in(q);
  const int64_t past = context.cache != nullptr ? context.cache->length(path()) : 0;
  const int64_t end = past + q.local().size(1);
  return relative_bias(relative_bias_->use(), *options_.relative_bias, options_.causal, {past, end},
                       end);
}

Tensor Attention::cross_bias(const Context& context) const {
  const std::string name = options_.keys_from + "_mask";
  if (!context.values.has(name)) return {};
  const Tensor& mask = context.values.at(name).local();
  // Not -inf: a query whose keys are all hidden attends to all of them equally, which is finite.
  return at::zeros(mask.sizes(), mask.options().dtype(at::kFloat))
      .masked_fill(mask.logical_not(), std::numeric_limits<float>::lowest())
      .unsqueeze(1)
      .unsqueeze(1);
}

DTensor Attention::forward(const DTensor& x, const Context& context) {
  const bool crosses = !options_.keys_from.empty();
  const DTensor shared = q_proj_.shared_input(x);
  const DTensor source =
      crosses ? k_proj_.shared_input(context.values.at(options_.keys_from)) : shared;
  DTensor q = q_proj_(shared, context);
  DTensor k = k_proj_(source, context);
  if (q_norm_) {
    q = (*q_norm_)(q, context);
    k = (*k_norm_)(k, context);
  }
  const DTensor v = v_proj_(source, context);
  if (!crosses) {
    const Tensor bias = bias_of(q, context);
    return o_proj_(mine(attention_(q, k, v, path(), context, bias)), context);
  }
  Context unmasked = context;
  for (Tensor* mask : {&unmasked.positions, &unmasked.key_mask, &unmasked.first_key}) mask->reset();
  unmasked.cache = nullptr;
  const Tensor bias = cross_bias(context);
  return o_proj_(mine(attention_(q, k, v, path(), unmasked, bias)), context);
}

}  // namespace cleave::inline nn
