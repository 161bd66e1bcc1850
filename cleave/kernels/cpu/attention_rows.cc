#include "cleave/kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>

#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/kernels/cpu/kernel_job.h"
#include "cleave/torch_internals/op_clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/attention_rows.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/attention-inl.h"
#include "cleave/kernels/cpu/float_products-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

void multiply(const FloatProduct& p) {
  const ProductTime time;
  multiply_floats(p);
}

/// Several queries. Queries and results have type T, keys and values type K.
template <class T, class K>
void forward_heads(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  const Sizes z(job);
  const Mask mask(job, batch);
  const int64_t kept_floats = KeptProbabilities::floats(job, z.keys);
  Scratch scratch(z.width * z.keys + z.keys * z.width + kRows * (z.keys + 2 * z.width) +
                  kept_floats);
  float* k_t = scratch.take(z.width * z.keys);
  float* v = scratch.take(z.keys * z.width);
  float* q = scratch.take(kRows * z.width);
  float* scores = scratch.take(kRows * z.keys);
  float* out = scratch.take(kRows * z.width);
  const KeptProbabilities kept(job, batch, scratch.take(kept_floats));
  pack_transposed(head<K>(job.k, batch, kv_head), job.k.row_stride, job.num_keys, z.width, z.keys,
                  k_t);
  pack(head<K>(job.v, batch, kv_head), job.v.row_stride, job.num_keys, z.width, 1, v);
  std::fill(v + job.num_keys * z.width, v + z.keys * z.width, 0.0F);
  for (int64_t h = 0; h < job.num_heads; ++h) {
    if (job.kv_head[h] != kv_head) continue;
    for (int64_t begin = 0; begin < job.num_queries; begin += kRows) {
      const int64_t rows = std::min(kRows, job.num_queries - begin);
      const Columns columns = columns_of(mask, z, begin, rows);
      const int64_t count = columns.size();
      float* seen = scores + columns.begin;
      const float* keys = k_t + columns.begin;
      const float* values = v + columns.begin * z.width;
      pack(head<T>(job.q, batch, h) + begin * job.q.row_stride, job.q.row_stride, rows, z.width,
           job.scale, q);
      multiply({rows, count, z.width, {q, z.width, 1}, keys, z.keys, seen, z.keys, false});
      float* log_sums = job.log_sums + (batch * job.num_heads + h) * job.num_queries + begin;
      T* to = head_to_write<T>(job.out, batch, h) + begin * job.out.row_stride;
      float inverse[kRows];
      for (int64_t r = 0; r < rows; ++r) {
        if (job.soft_cap > 0) cap_scores(seen + r * z.keys, count, job.soft_cap, nullptr);
        mask.apply(scores + r * z.keys, begin + r, columns);
        const float top = largest(seen + r * z.keys, count);
        const float sum = exponentials(seen + r * z.keys, count, top);
        log_sums[r] = top + std::log(sum);
        inverse[r] = 1 / sum;
        if (!kept.drops()) continue;
        multiply_row(kept.row(h, begin + r, columns.begin, count), count, seen + r * z.keys);
      }
      multiply({rows, z.width, count, {seen, z.keys, 1}, values, z.width, out, z.width, false});
      for (int64_t r = 0; r < rows; ++r) {
        unpack(out + r * z.width, 1, z.width, inverse[r], to + r * job.out.row_stride, 0);
      }
    }
  }
}

/// Prefetches memory that is read a few dozen rows after `at`.
template <class T>
HWY_INLINE void fetch_ahead(const T* at) {
  hwy::Prefetch(reinterpret_cast<const char*>(at) + kFetchAheadBytes);
}

/// out[i] = sum over s < count of p[s] values[s][i], for kN vectors of i.
template <size_t kN, class T>
HWY_INLINE void weighted_sum(const float* p, int64_t count, const T* values, int64_t row_stride,
                             float* out) {
  const size_t lanes = hn::Lanes(kFloats);
  FloatVec sum[kN];
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) sum[n] = hn::Zero(kFloats);
  for (int64_t s = 0; s < count; ++s, values += row_stride) {
    const FloatVec factor = hn::Set(kFloats, p[s]);
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
      fetch_ahead(values + n * lanes);
      sum[n] = hn::MulAdd(factor, load(values + n * lanes), sum[n]);
    }
  }
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) store(sum[n], out + n * lanes);
}

/// Horizontal sums of kCount vectors: element n of the result is the sum of v[n]'s lanes.
template <size_t kCount>
HWY_INLINE FloatVec sums_of_each(FloatVec* v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kCount > 1) {
    // Sums of neighbouring lanes: those of the first vector, then those of the second.
#pragma GCC unroll 8
    for (size_t n = 0; n < kCount / 2; ++n) {
      v[n] = hn::Add(hn::ConcatEven(kFloats, v[2 * n + 1], v[2 * n]),
                     hn::ConcatOdd(kFloats, v[2 * n + 1], v[2 * n]));
    }
    return sums_of_each<kCount / 2>(v);
  }
#endif
  return v[0];
}

/// scores[s] = q . keys[s] for `count` rows of `width` numbers.
template <class T>
HWY_INLINE void scores_of(const float* q, const T* keys, int64_t row_stride, int64_t count,
                          int64_t width, float* scores) {
  constexpr size_t kLanes = HWY_LANES(float);
  constexpr auto lanes = static_cast<int64_t>(kLanes);
  int64_t s = 0;
  for (; s + lanes <= count; s += lanes, keys += lanes * row_stride) {
    FloatVec sums[kLanes];
#pragma GCC unroll 16
    for (FloatVec& sum : sums) sum = hn::Zero(kFloats);
    for (int64_t i = 0; i < width; i += lanes) {
      const FloatVec part = load(q + i);
#pragma GCC unroll 16
      for (size_t n = 0; n < kLanes; ++n) {
        const T* key = keys + static_cast<int64_t>(n) * row_stride + i;
        fetch_ahead(key);
        sums[n] = hn::MulAdd(part, load(key), sums[n]);
      }
    }
    store(sums_of_each<kLanes>(sums), scores + s);
  }
  for (; s < count; ++s, keys += row_stride) {
    FloatVec sums = hn::Zero(kFloats);
    for (int64_t i = 0; i < width; i += lanes) {
      sums = hn::MulAdd(load(q + i), load(keys + i), sums);
    }
    scores[s] = hn::GetLane(hn::SumOfLanes(kFloats, sums));
  }
}

/// One query (decoding); reads keys and values without copying them.
template <class T, class K>
void decode_heads(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  const Sizes z(job);
  const Mask mask(job, batch);
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  Scratch scratch(2 * z.width + z.keys);
  float* q = scratch.take(z.width);
  float* out = scratch.take(z.width);
  float* scores = scratch.take(z.keys);
  const Columns columns = columns_of(mask, z, 0, 1);
  const int64_t count = job.num_keys - columns.begin;
  const K* keys = head<K>(job.k, batch, kv_head) + columns.begin * job.k.row_stride;
  const K* values = head<K>(job.v, batch, kv_head) + columns.begin * job.v.row_stride;
  for (int64_t h = 0; h < job.num_heads; ++h) {
    if (job.kv_head[h] != kv_head) continue;
    pack(head<T>(job.q, batch, h), 0, 1, z.width, job.scale, q);
    float* seen = scores + columns.begin;
    scores_of(q, keys, job.k.row_stride, count, z.width, seen);
    if (job.soft_cap > 0) cap_scores(seen, columns.size(), job.soft_cap, nullptr);
    mask.apply(scores, 0, columns);
    const float top = largest(seen, columns.size());
    const float sum = exponentials(seen, columns.size(), top);
    job.log_sums[batch * job.num_heads + h] = top + std::log(sum);
    int64_t i = 0;
    for (; i + 4 * lanes <= z.width; i += 4 * lanes) {
      weighted_sum<4>(seen, count, values + i, job.v.row_stride, out + i);
    }
    for (; i < z.width; i += lanes) {
      weighted_sum<1>(seen, count, values + i, job.v.row_stride, out + i);
    }
    unpack(out, 1, z.width, 1 / sum, head_to_write<T>(job.out, batch, h), 0);
  }
}

/// Scratch memory of backward: for the KV head, then for a block of queries.
struct BackwardScratch {
  BackwardScratch(Scratch& s, const Sizes& z, const AttentionJob& job, int64_t batch)
      : k_t(s.take(z.width * z.keys)),
        v_t(s.take(z.width * z.keys)),
        k(s.take(z.keys * z.width)),
        dk(s.take(z.keys * z.width)),
        dv(s.take(z.keys * z.width)),
        q(s.take(kRows * z.width)),
        dout(s.take(kRows * z.width)),
        dq(s.take(kRows * z.width)),
        p(s.take(kRows * z.keys)),
        ds(s.take(kRows * z.keys)),
        slopes(job.soft_cap > 0 ? s.take(kRows * z.keys) : nullptr),
        kept(job, batch, s.take(KeptProbabilities::floats(job, z.keys))) {}
  static int64_t floats(const Sizes& z, const AttentionJob& job) {
    return 5 * z.width * z.keys + 3 * kRows * z.width +
           (job.soft_cap > 0 ? 3 : 2) * kRows * z.keys + KeptProbabilities::floats(job, z.keys);
  }
  float *k_t, *v_t, *k, *dk, *dv;
  float *q, *dout, *dq, *p, *ds;
  float* slopes;  // of the capped scores; null without a cap
  KeptProbabilities kept;
};

/// Start of a block of queries.
struct QueryBlock {
  int64_t batch, head, begin;
};

template <class T>
void backward_block(const AttentionJob& job, const Mask& mask, const Sizes& z,
                    const BackwardScratch& b, const QueryBlock& at) {
  const int64_t batch = at.batch;
  const int64_t h = at.head;
  const int64_t begin = at.begin;
  const int64_t rows = std::min(kRows, job.num_queries - begin);
  const Columns columns = columns_of(mask, z, begin, rows);
  const auto packed = [&](const HeadsView& view, float scale, float* to) {
    pack(head<T>(view, batch, h) + begin * view.row_stride, view.row_stride, rows, z.width, scale,
         to);
  };
  packed(job.q, job.scale, b.q);
  packed(job.dout, 1, b.dout);
  const float* log_sums = job.log_sums + (batch * job.num_heads + h) * job.num_queries + begin;
  const int64_t count = columns.size();
  const int64_t first = columns.begin;
  const int64_t reached = std::min(columns.end, job.num_keys) - first;
  const int64_t skipped = first * z.width;
  float* p = b.p + first;
  float* ds = b.ds + first;
  float sums[kRows];
  multiply({rows, count, z.width, {b.q, z.width, 1}, b.k_t + first, z.keys, p, z.keys, false});
  for (int64_t r = 0; r < rows; ++r) {
    if (b.slopes != nullptr) {
      cap_scores(p + r * z.keys, count, job.soft_cap, b.slopes + r * z.keys + first);
    }
    mask.apply(b.p + r * z.keys, begin + r, columns);
    sums[r] = exponentials(p + r * z.keys, count, log_sums[r]);
  }
  multiply({rows, count, z.width, {b.dout, z.width, 1}, b.v_t + first, z.keys, ds, z.keys, false});
  for (int64_t r = 0; r < rows; ++r) {
    float* p_row = p + r * z.keys;
    float* ds_row = ds + r * z.keys;
    const float* kept = b.kept.drops() ? b.kept.row(h, begin + r, first, count) : nullptr;
    if (kept != nullptr) multiply_row(kept, count, ds_row);
    score_gradients(sums[r], count, p_row, ds_row);
    if (kept != nullptr) multiply_row(kept, count, p_row);
    if (b.slopes != nullptr) multiply_row(b.slopes + r * z.keys + first, count, ds_row);
  }
  float* dv = b.dv + skipped;
  float* dk = b.dk + skipped;
  multiply({reached, z.width, rows, {p, 1, z.keys}, b.dout, z.width, dv, z.width, true});
  multiply({reached, z.width, rows, {ds, 1, z.keys}, b.q, z.width, dk, z.width, true});
  const float* k = b.k + skipped;
  multiply({rows, z.width, reached, {ds, z.keys, 1}, k, z.width, b.dq, z.width, false});
  unpack(b.dq, rows, z.width, job.scale,
         head_to_write<T>(job.dq, batch, h) + begin * job.dq.row_stride, job.dq.row_stride);
}

template <class T>
void backward_heads(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  const Sizes z(job);
  const Mask mask(job, batch);
  Scratch scratch(BackwardScratch::floats(z, job));
  const BackwardScratch b(scratch, z, job, batch);
  const T* k = head<T>(job.k, batch, kv_head);
  pack_transposed(k, job.k.row_stride, job.num_keys, z.width, z.keys, b.k_t);
  pack_transposed(head<T>(job.v, batch, kv_head), job.v.row_stride, job.num_keys, z.width, z.keys,
                  b.v_t);
  pack(k, job.k.row_stride, job.num_keys, z.width, 1, b.k);
  std::fill(b.dk, b.dk + z.keys * z.width, 0.0F);
  std::fill(b.dv, b.dv + z.keys * z.width, 0.0F);
  for (int64_t h = 0; h < job.num_heads; ++h) {
    if (job.kv_head[h] != kv_head) continue;
    for (int64_t begin = 0; begin < job.num_queries; begin += kRows) {
      backward_block<T>(job, mask, z, b, {batch, h, begin});
    }
  }
  unpack(b.dk, job.num_keys, z.width, 1, head_to_write<T>(job.dk, batch, kv_head),
         job.dk.row_stride);
  unpack(b.dv, job.num_keys, z.width, 1, head_to_write<T>(job.dv, batch, kv_head),
         job.dv.row_stride);
}

template <class T, class K>
void forward_typed(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  job.num_queries == 1 && job.dropout.p == 0 ? decode_heads<T, K>(job, batch, kv_head)
                                             : forward_heads<T, K>(job, batch, kv_head);
}

void forward_task(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  if (job.is_bf16) return forward_typed<uint16_t, uint16_t>(job, batch, kv_head);
  job.has_bf16_keys ? forward_typed<float, uint16_t>(job, batch, kv_head)
                    : forward_typed<float, float>(job, batch, kv_head);
}
void backward_task(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  job.is_bf16 ? backward_heads<uint16_t>(job, batch, kv_head)
              : backward_heads<float>(job, batch, kv_head);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(forward_task);
HWY_EXPORT(backward_task);

void attention_forward(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  if (job.is_bf16 && job.num_queries > 1 && has_bf16_products()) {
    return attention_forward_pairs(job, batch, kv_head);
  }
  HWY_DYNAMIC_DISPATCH(forward_task)(job, batch, kv_head);
}
void attention_backward(const AttentionJob& job, int64_t batch, int64_t kv_head) {
  if (job.is_bf16 && has_bf16_products()) return attention_backward_pairs(job, batch, kv_head);
  HWY_DYNAMIC_DISPATCH(backward_task)(job, batch, kv_head);
}
}  // namespace cleave::inline kernels
#endif
