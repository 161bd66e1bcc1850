#include "cleave/kernels/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/attention_rows.h"
#include "cleave/kernels/device.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline kernels {
namespace {

/// [B, heads, rows, K] in the memory order [B, rows, heads, K].
Tensor empty_heads(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

/// Empty for an undefined tensor.
HeadsView view_of(const Tensor& t) {
  if (!t.defined()) return {};
  return {.data = t.data_ptr(),
          .batch_stride = t.stride(0),
          .head_stride = t.stride(1),
          .row_stride = t.stride(2)};
}

/// Gradients of attention's result and inputs; undefined in forward.
struct AttentionGradients {
  Tensor dout, dq, dk, dv;
};

/// Tensors and masks saved for backward.
struct Saved {
  Tensor q, k, v;
  Tensor out;  ///< of forward; undefined in backward
  Tensor log_sums;
  Tensor key_mask, first_key;
  std::vector<int64_t> kv_head;
  bool causal;
  int64_t window;
  double divisor, soft_cap;
  AttentionDropout dropout;

  [[nodiscard]] AttentionJob job(const AttentionGradients& g) const {
    return {.num_heads = q.size(1),
            .num_kv_heads = k.size(1),
            .num_queries = q.size(2),
            .num_keys = k.size(2),
            .width = q.size(3),
            .causal = causal,
            .window = window,
            .scale = static_cast<float>(1 / divisor),
            .soft_cap = static_cast<float>(soft_cap),
            .dropout = dropout,
            .is_bf16 = q.scalar_type() == at::kBFloat16,
            .has_bf16_keys = k.scalar_type() == at::kBFloat16,
            .has_int8_keys = k.scalar_type() == at::kChar,
            .key_mask = key_mask.defined() && !key_mask.is_meta() ? key_mask.const_data_ptr<bool>()
                                                                  : nullptr,
            .first_key = first_key.defined() && !first_key.is_meta()
                             ? first_key.const_data_ptr<int64_t>()
                             : nullptr,
            .kv_head = kv_head.data(),
            .q = view_of(q),
            .k = view_of(k),
            .v = view_of(v),
            .out = view_of(out),
            .log_sums = log_sums.is_meta() ? nullptr : log_sums.data_ptr<float>(),
            .dout = view_of(g.dout),
            .dq = view_of(g.dq),
            .dk = view_of(g.dk),
            .dv = view_of(g.dv)};
  }

  [[nodiscard]] AttentionWork work(bool is_backward) const {
    return {.batch = q.size(0),
            .heads = q.size(1),
            .kv_heads = k.size(1),
            .queries = q.size(2),
            .keys = k.size(2),
            .width = q.size(3),
            .window = window,
            .is_causal = causal,
            .is_backward = is_backward,
            .has_dropout = dropout.p > 0,
            .type = q.scalar_type()};
  }
};

/// Products of numbers for which a further thread is worth while.
constexpr int64_t kGrainProducts = int64_t{1} << 17;

/// Calls task(AttentionParts) in parallel for all parts of all KV heads.
template <class Task>
void for_each_part(const AttentionJob& job, int64_t num_batches, const Task& task) {
  const int64_t heads_of_kv = job.num_heads / std::max<int64_t>(1, job.num_kv_heads);
  const int64_t products = heads_of_kv * job.num_queries * job.num_keys * job.width;
  const int64_t grain = 1 + kGrainProducts * job.num_parts / std::max<int64_t>(1, products);
  const int64_t count = num_batches * job.num_kv_heads * job.num_parts;
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    // Parts of one KV head are one task, which copies its keys once.
    for (int64_t i = begin; i < end;) {
      const int64_t head = i / job.num_parts, first = head * job.num_parts;
      const int64_t last = std::min(end, first + job.num_parts);
      task(AttentionParts{.batch = head / job.num_kv_heads,
                          .kv_head = head % job.num_kv_heads,
                          .begin = i - first,
                          .end = last - first});
      i = last;
    }
  });
}

/// Parts of the queries of a KV head, so that all threads have the same number of parts: a batch of
/// one text with three KV heads would occupy only three threads, and two threads unevenly.
int64_t num_parts(const AttentionJob& job, int64_t num_batches) {
  const int64_t heads = num_batches * job.num_kv_heads, threads = at::get_num_threads();
  if (heads == 0 || heads >= 4 * threads) return 1;
  const int64_t blocks = (job.num_queries + kQueryBlock - 1) / kQueryBlock;
  return std::clamp<int64_t>(threads / std::gcd(heads, threads), 1, std::max<int64_t>(1, blocks));
}

/// Parts of the queries of a KV head in backward. Each has its own sums for keys and values, which
/// are added afterwards: few queries are not worth it, and results depend on the number of threads
/// by rounding.
int64_t num_backward_parts(const AttentionJob& job, int64_t num_batches) {
  constexpr int64_t kLeastQueries = 256;
  const int64_t queries = job.num_heads / std::max<int64_t>(1, job.num_kv_heads) * job.num_queries;
  return std::clamp<int64_t>(queries / kLeastQueries, 1, num_parts(job, num_batches));
}

/// Runs backward; d has dq, dk and dv.
void run_backward(const Saved& saved, const Tensor& dout, const variable_list& d) {
  const at::IntArrayRef sizes = saved.k.sizes();
  const int64_t parts = num_backward_parts(saved.job({}), sizes[0]);
  std::array<Tensor, 2> sums{d[1], d[2]};  // dk and dv, or those of the parts
  if (parts > 1) {
    for (Tensor& t : sums) {
      t = at::empty({sizes[0], sizes[1] * parts, sizes[2], sizes[3]},
                    saved.k.options().dtype(at::kFloat));
    }
  }
  AttentionJob job = saved.job({.dout = dout, .dq = d[0], .dk = sums[0], .dv = sums[1]});
  job.num_parts = parts;
  for_each_part(job, sizes[0], [&](const auto& some) { attention_backward(job, some); });
  if (parts == 1) return;
  for (size_t i = 0; i < sums.size(); ++i) {
    d[i + 1].copy_(sums[i].view({sizes[0], sizes[1], parts, sizes[2], sizes[3]}).sum(2));
  }
}

/// Checks first_key, on which the loops rely.
void check_first_keys(const Tensor& q, const Tensor& k, const AttentionMask& mask) {
  const Tensor& first = mask.first_key;
  const int64_t T = q.size(2);
  CLEAVE_CHECK(mask.causal && first.dim() == 2 && first.size(0) == q.size(0) &&
                   first.size(1) == T && first.scalar_type() == at::kLong && first.is_contiguous(),
               Code::kShape, "attention: first_key ", first.sizes(), " of ", first.dtype().name(),
               mask.causal ? "" : " without the causal mask", "; expected contiguous [B, T] = [",
               q.size(0), ", ", T, "] of int64, and the causal mask");
  if (first.is_meta()) return;
  const auto* keys = first.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < first.numel(); ++i) {
    const int64_t own = i % T + k.size(2) - T;
    CLEAVE_CHECK(keys[i] >= 0 && keys[i] <= own, Code::kShape, "attention: first_key of query ",
                 i % T, " is ", keys[i], "; expected 0 to its own key, ", own);
  }
}

/// Checks everything that the loops rely on.
void check_sizes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask) {
  const int64_t scale_bytes = k.scalar_type() == at::kChar ? kInt8ScaleBytes : 0;
  CLEAVE_CHECK(q.dim() == 4 && k.dim() == 4 && k.size(0) == q.size(0) &&
                   k.size(3) == q.size(3) + scale_bytes && v.sizes() == k.sizes(),
               Code::kShape, "attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
               "; expected q [B, H, T, K], k and v [B, G, S, K]");
  CLEAVE_CHECK((!mask.causal && !mask.key_mask.defined()) || q.size(2) <= k.size(2), Code::kShape,
               "attention with a mask: T=", q.size(2), " queries are more than S=", k.size(2),
               " keys; the last T keys must be the queries' own tokens");
  CLEAVE_CHECK(mask.window >= 0 && (mask.causal || mask.window == 0), Code::kShape,
               "attention: window=", mask.window, mask.causal ? "" : " without the causal mask",
               "; expected a causal window of 1 or more keys, or 0 for none");
  CLEAVE_CHECK(mask.divisor >= 0 && mask.soft_cap >= 0, Code::kShape,
               "attention: divisor=", mask.divisor, ", soft_cap=", mask.soft_cap,
               "; expected positive numbers, or 0 for sqrt(K) and no cap");
  if (mask.key_mask.defined()) {
    const auto sizes = mask.key_mask.sizes();
    CLEAVE_CHECK(sizes.size() == 2 && (sizes[0] == 1 || sizes[0] == q.size(0)) &&
                     sizes[1] == k.size(2) && mask.key_mask.scalar_type() == at::kBool,
                 Code::kShape, "attention: key_mask ", sizes, " of ", mask.key_mask.dtype().name(),
                 "; expected [B or 1, S] = [", q.size(0), ", ", k.size(2), "] of bool");
  }
  if (mask.first_key.defined()) check_first_keys(q, k, mask);
  const auto num_heads = static_cast<int64_t>(mask.kv_head.size());
  CLEAVE_CHECK(mask.kv_head.empty() ? k.size(1) == q.size(1) : num_heads == q.size(1), Code::kShape,
               "attention: kv_head has ", num_heads, " entries for H=", q.size(1),
               " query heads and G=", k.size(1), " KV heads; give one entry per query head");
  for (const int64_t kv_head : mask.kv_head) {
    CLEAVE_CHECK(kv_head >= 0 && kv_head < k.size(1), Code::kShape, "attention: kv_head has ",
                 kv_head, "; there are G=", k.size(1), " KV heads");
  }
}

Tensor with_heads_together(const Tensor& t) {
  return t.stride(3) == 1 ? t : t.contiguous();
}

/// One row of to_int8_rows.
void write_int8_row(const float* from, int64_t width, int8_t* to) {
  float largest = 0;
  float zero = 0;  // NaN if a number is NaN or infinite, which a maximum could lose
  for (int64_t i = 0; i < width; ++i) {
    largest = std::max(largest, std::abs(from[i]));
    zero += 0 * from[i];
  }
  const float inverse = largest > 0 ? 127 / largest : 0;
  const float scale = largest / 127 + zero;
  for (int64_t i = 0; i < width; ++i) {
    const float number = std::isnan(zero) ? 0 : std::nearbyint(from[i] * inverse);
    to[i] = static_cast<int8_t>(std::clamp(number, -127.0F, 127.0F));
  }
  std::memcpy(to + width, &scale, kInt8ScaleBytes);
}

}  // namespace

Tensor to_int8_rows(const Tensor& rows) {
  const Tensor from = rows.detach().to(at::kFloat).contiguous();
  auto shape = rows.sizes().vec();
  const int64_t width = shape.back();
  shape.back() += kInt8ScaleBytes;
  Tensor to = at::empty(shape, from.options().dtype(at::kChar));
  if (to.is_meta()) return to;
  const auto* numbers = from.const_data_ptr<float>();
  auto* bytes = to.mutable_data_ptr<int8_t>();
  constexpr int64_t kGrainRows = 256;
  at::parallel_for(
      0, from.numel() / std::max<int64_t>(width, 1), kGrainRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          write_int8_row(numbers + r * width, width, bytes + r * (width + kInt8ScaleBytes));
        }
      });
  return to;
}

Tensor from_int8_rows(const Tensor& rows, at::ScalarType type) {
  const int64_t width = rows.size(-1) - kInt8ScaleBytes;
  // A copy of its own even of one row, whose scale is contiguous but may not be aligned.
  const Tensor scales =
      rows.narrow(-1, width, kInt8ScaleBytes).clone(at::MemoryFormat::Contiguous).view(at::kFloat);
  return rows.narrow(-1, 0, width).to(at::kFloat).mul_(scales).to(type);
}

bool takes_fast_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const at::ScalarType type = q.scalar_type();
  const at::ScalarType key_type = k.scalar_type();
  const bool is_narrow = (type == at::kFloat && key_type == at::kBFloat16) ||
                         (key_type == at::kChar && q.size(2) == 1);
  const bool narrows = is_narrow && !needs_grad(q) && !needs_grad(k) && !needs_grad(v);
  return takes_ways_of_cpu(q) && (type == at::kFloat || type == at::kBFloat16) &&
         (key_type == type || narrows) && v.scalar_type() == key_type && q.size(3) % 16 == 0 &&
         q.numel() > 0 && k.numel() > 0;
}

Tensor fast_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionMask& mask) {
  check_sizes(q, k, v, mask);
  const bool has_backward = needs_grad(q) || needs_grad(k) || needs_grad(v);
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("attention");
  Saved saved{
      .q = with_heads_together(without_history(q)),
      .k = with_heads_together(without_history(k)),
      .v = with_heads_together(without_history(v)),
      .out = empty_heads(q),
      .log_sums = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat)),
      .key_mask = mask.key_mask.defined()
                      ? mask.key_mask.expand({q.size(0), k.size(2)}).contiguous()
                      : Tensor(),
      .first_key = mask.first_key,
      .kv_head = mask.kv_head,
      .causal = mask.causal,
      .window = mask.window,
      .divisor = mask.divisor > 0 ? mask.divisor : std::sqrt(static_cast<double>(q.size(3))),
      .soft_cap = mask.soft_cap,
      .dropout = mask.dropout};
  if (saved.kv_head.empty()) {
    saved.kv_head.resize(static_cast<size_t>(q.size(1)));
    std::iota(saved.kv_head.begin(), saved.kv_head.end(), 0);
  }
  if (!q.is_meta()) {
    AttentionJob job = saved.job({});
    job.num_parts = num_parts(job, q.size(0));
    for_each_part(job, q.size(0), [&](const auto& some) { attention_forward(job, some); });
  }
  count_attention(saved.work(false));
  Tensor out = saved.out;
  if (!has_backward) return out;
  saved.out = Tensor();  // backward needs none, and the result's node must not own the result
  const auto check = [inputs = std::array{SavedInput("attention", saved.q),
                                          SavedInput("attention", saved.k),
                                          SavedInput("attention", saved.v)}] {
    for (const SavedInput& input : inputs) (void)input.get();
  };
  connect("attention", {q, k, v}, {out}, [saved, check](variable_list&& grads) -> variable_list {
    check();
    const Tensor dout = with_heads_together(grads[0]);
    variable_list d{empty_heads(saved.q), empty_heads(saved.k), empty_heads(saved.v)};
    if (!dout.is_meta()) run_backward(saved, dout, d);
    count_attention(saved.work(true));
    return d;
  });
  return out;
}

}  // namespace cleave::inline kernels
