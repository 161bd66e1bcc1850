#include "cleave/nn/heads.h"

#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/attention.h"
#include "cleave/kernels/cpu/wide_product.h"
#include "cleave/kernels/device.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/soft_cap.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline nn {
namespace {

bool is_one_to_one(const Tensor& kv_head, int64_t num_kv) {
  if (kv_head.size(0) != num_kv) return false;
  return at::equal(kv_head, at::arange(num_kv, kv_head.options()));
}

/// Whether every KV head has the same number of query heads, in order, so that the queries of a
/// group can be stacked.
bool is_grouped(const Tensor& kv_head, int64_t num_kv) {
  const int64_t heads = kv_head.size(0);
  if (num_kv == 0 || heads % num_kv != 0) return false;
  return at::equal(kv_head,
                   at::arange(num_kv, kv_head.options()).repeat_interleave(heads / num_kv));
}

/// [B or 1, 1, T, S] bool, true = may attend; empty when no key is masked.
std::optional<Tensor> allowed(const Tensor& q, int64_t num_keys, const AttendOptions& options,
                              const Context& context) {
  std::optional<Tensor> mask;
  const int64_t num_queries = q.size(2);
  const bool is_causal = options.causal && num_queries > 1;
  if (!is_causal && options.window == 0 && !context.first_key.defined() &&
      !context.key_mask.defined()) {
    return mask;  // also of more queries than keys
  }
  const Tensor key = at::arange(num_keys, q.options().dtype(at::kLong));
  const Tensor query = key.narrow(0, num_keys - num_queries, num_queries).unsqueeze(-1);
  if (is_causal) {
    mask = key.le(query).view({1, 1, num_queries, num_keys});
  }
  if (options.window > 0 && options.window < num_keys) {
    const Tensor near = key.gt(query - options.window).view({1, 1, num_queries, num_keys});
    mask = mask ? mask->bitwise_and(near) : near;
  }
  if (context.first_key.defined()) {
    const Tensor same_text = key.ge(context.first_key.unsqueeze(-1)).unsqueeze(1);
    mask = mask ? mask->bitwise_and(same_text) : same_text;
  }
  if (!context.key_mask.defined()) return mask;
  const Tensor real = context.key_mask.view({context.key_mask.size(0), 1, 1, num_keys});
  const Tensor own = key.eq(query).view({1, 1, num_queries, num_keys});
  const Tensor seen = mask ? mask->bitwise_and(real) : real;
  return seen.bitwise_or(own.bitwise_and(seen.any(-1, true).bitwise_not()));
}

}  // namespace

HeadShard HeadShard::make(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                          int num_ranks) {
  CLEAVE_CHECK(num_kv_heads > 0 && num_heads % num_kv_heads == 0, Code::kShape,
               "num_attention_heads=", num_heads,
               " must be a multiple of num_key_value_heads=", num_kv_heads);
  CLEAVE_CHECK(num_ranks <= num_heads, Code::kShape, "tp=", num_ranks,
               " is more than num_attention_heads=", num_heads, "; choose tp from 1 to ",
               num_heads);
  const int64_t group = num_heads / num_kv_heads;
  const std::string family = str("heads ", num_heads, "/", num_kv_heads, " x ", head_dim);
  const SplitPtr heads = Split::balanced(num_heads, num_ranks);
  std::vector<std::vector<Range>> query, kv;
  for (int r = 0; r < num_ranks; ++r) {
    const Range h = heads->ranges(r).front();
    query.push_back({{h.begin * head_dim, h.end * head_dim}});
    kv.push_back({{h.begin / group * head_dim, ((h.end - 1) / group + 1) * head_dim}});
  }
  return {.query = Split::intern(num_heads * head_dim, std::move(query), family),
          .kv = Split::intern(num_kv_heads * head_dim, std::move(kv), family)};
}

SplitPtr fused_columns(const HeadShard& shard) {
  const int64_t keys = shard.query->whole();
  const int64_t values = keys + shard.kv->whole();
  std::vector<std::vector<Range>> ranges;
  for (int r = 0; r < shard.query->num_ranks(); ++r) {
    const Range q = shard.query->ranges(r).front();
    const Range kv = shard.kv->ranges(r).front();
    ranges.push_back({q, {keys + kv.begin, keys + kv.end}, {values + kv.begin, values + kv.end}});
  }
  return Split::intern(values + shard.kv->whole(), std::move(ranges), shard.query->family());
}

Tensor kv_head_of(const HeadShard& shard, int64_t num_heads, int64_t num_kv_heads, int rank) {
  const int64_t head_dim = shard.query->whole() / num_heads;
  const Range q = shard.query->ranges(rank).front();
  const Range kv = shard.kv->ranges(rank).front();
  const Tensor heads = at::arange(q.begin / head_dim, q.end / head_dim);
  return heads.div(num_heads / num_kv_heads, "floor") - kv.begin / head_dim;
}

namespace {

/// libtorch's attention, which does not materialise scores. The meta device has no such kernel, so
/// a dry run allocates what libtorch's CPU kernel saves for backward: the output [B, T, H, K] and
/// each query's log-sum-exp.
///
/// k and v may have fewer heads than q on devices other than the CPU, in 16 bits and without a
/// mask: other kernels lack that, and libtorch would materialise the scores.
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& mask, bool causal, double divisor) {
  if (!q.is_meta()) {
    const std::optional<double> scale = divisor > 0 ? std::optional(1 / divisor) : std::nullopt;
    const bool has_groups = k.size(1) != q.size(1);
    return at::scaled_dot_product_attention(q, k, v, mask, 0, causal, scale, has_groups);
  }
  const bool has_backward = needs_grad(q) || needs_grad(k) || needs_grad(v);
  const at::NoGradGuard no_grad;
  Tensor out = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
  AttentionWork work{.batch = q.size(0),
                     .heads = q.size(1),
                     .kv_heads = k.size(1),
                     .queries = q.size(2),
                     .keys = k.size(2),
                     .width = q.size(3),
                     .is_causal = causal,
                     .type = q.scalar_type()};
  count_attention(work);
  if (!has_backward) return out;
  work.is_backward = true;
  const Tensor log_sums = at::empty({q.size(0), q.size(1), q.size(2)}, at::kFloat);
  connect("dry_attention", {q, k, v}, {out},
          [q, k, v, work, kept = out.detach(), log_sums](auto&&) {
            count_attention(work);
            return variable_list{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
          });
  return out;
}

/// Keys or values [B, G, S, K] for each query head, [B, H, S, K].
///
/// On devices it does not use an index: the copy of the index would make the host wait, and the
/// backward of index_select adds there in no fixed order and rounds each sum to the type.
Tensor for_each_head(const Tensor& t, const Tensor& kv_head) {
  if (t.is_cpu() || t.is_meta()) return t.index_select(1, kv_head.to(t.device()));
  const auto* heads = kv_head.const_data_ptr<int64_t>();  // ascending
  std::vector<Tensor> parts;
  for (int64_t begin = 0, end = 0; begin < kv_head.numel(); begin = end) {
    while (end < kv_head.numel() && heads[end] == heads[begin]) ++end;
    parts.push_back(t.narrow(1, heads[begin], 1).expand({-1, end - begin, -1, -1}));
  }
  return at::cat(parts, 1);
}

/// Attention that holds all scores; keys and values for each query head.
Tensor attention_by_scores(const Tensor& q, const Tensor& keys, const Tensor& values,
                           const AttendOptions& options, const std::optional<Tensor>& seen) {
  const double divisor =
      options.score_divisor > 0 ? options.score_divisor : std::sqrt(static_cast<double>(q.size(3)));
  Tensor scores = q.matmul(keys.transpose(-1, -2)) / divisor;
  if (options.soft_cap > 0) scores = soft_cap(scores, options.soft_cap);
  if (options.bias.defined()) scores = scores + options.bias;
  if (seen) {
    scores = scores.masked_fill(seen->bitwise_not(), -std::numeric_limits<double>::infinity());
  }
  Tensor probabilities = scores.softmax(-1).to(q.scalar_type());
  if (options.dropout.p > 0) {
    probabilities = probabilities * dropout_mask(options.dropout, probabilities);
  }
  return probabilities.matmul(values);
}

/// Whether attention in q's 16-bit type is computed in fp32, which is faster on this CPU.
bool is_widened(const Tensor& q) {
  return is_on(Kernel::kAttention) && takes_ways_of_cpu(q) && lacks_fast_products(q.scalar_type());
}

/// As fp32, but for keys and values in int8.
Tensor widened(const Tensor& t) {
  return t.scalar_type() == at::kChar ? t : t.to(at::kFloat);
}

}  // namespace

bool uses_fast_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttendOptions& options) {
  return is_on(Kernel::kAttention) && !options.bias.defined() &&
         (options.dropout.p == 0 || is_on(Kernel::kRandom)) && takes_fast_attention(q, k, v);
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options,
              const Context& context) {
  const int64_t T = q.size(2);
  const int64_t S = k.size(2);
  if (uses_fast_attention(q, k, v, options)) {
    const auto* heads = options.kv_head.const_data_ptr<int64_t>();
    return fast_attention(q, k, v,
                          {.causal = options.causal,
                           .window = options.window,
                           .key_mask = context.key_mask,
                           .first_key = context.first_key,
                           .kv_head = {heads, heads + options.kv_head.numel()},
                           .divisor = options.score_divisor,
                           .soft_cap = options.soft_cap,
                           .dropout = options.dropout});
  }
  if (is_widened(q)) {
    return attend(widened(q), widened(k), widened(v), options, context).to(q.scalar_type());
  }
  if (k.scalar_type() == at::kChar) {
    const at::ScalarType type = q.scalar_type();
    return attend(q, from_int8_rows(k, type), from_int8_rows(v, type), options, context);
  }
  if (k.scalar_type() != q.scalar_type()) {
    return attend(q, k.to(q.scalar_type()), v.to(q.scalar_type()), options, context);
  }
  const bool is_windowed = options.window > 0 && options.window < S;
  const bool plain_causal = options.causal && T > 1 && T == S && !context.key_mask.defined() &&
                            !context.first_key.defined() && !is_windowed;
  const std::optional<Tensor> mask = plain_causal ? std::nullopt : allowed(q, S, options, context);
  const bool needs_scores = options.dropout.p > 0 || options.soft_cap > 0 || options.bias.defined();
  if (T == 1 && !needs_scores && !is_one_to_one(options.kv_head, k.size(1)) &&
      is_grouped(options.kv_head, k.size(1))) {
    // Decoding: the queries of one KV head are stacked as rows, so keys are not copied.
    const Tensor q_BGRK = q.reshape({q.size(0), k.size(1), -1, q.size(3)});
    return fused_attention(q_BGRK, k, v, mask, false, options.score_divisor).reshape(q.sizes());
  }
  const bool takes_groups = !needs_scores && !takes_ways_of_cpu(q) && !mask &&
                            q.element_size() == 2 && is_grouped(options.kv_head, k.size(1));
  Tensor keys = k;
  Tensor values = v;
  if (!takes_groups && !is_one_to_one(options.kv_head, k.size(1))) {
    keys = for_each_head(k, options.kv_head);
    values = for_each_head(v, options.kv_head);
  }
  if (!needs_scores) {
    return fused_attention(q, keys, values, mask, plain_causal, options.score_divisor);
  }
  const std::optional<Tensor> seen =
      plain_causal ? std::optional(at::ones({T, S}, q.options().dtype(at::kBool)).tril()) : mask;
  return attention_by_scores(q, keys, values, options, seen);
}

}  // namespace cleave::inline nn
