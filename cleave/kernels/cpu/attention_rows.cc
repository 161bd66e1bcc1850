#include "cleave/kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

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
void forward_heads(const AttentionJob& job, const AttentionParts& parts) {
  const int64_t batch = parts.batch, kv_head = parts.kv_head;
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
  for_each_block(job, parts, [&](int64_t h, int64_t begin) {
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
  });
}

/// Prefetches memory that is read a few dozen rows after `at`.
template <class T>
HWY_INLINE void fetch_ahead(const T* at) {
  hwy::Prefetch(reinterpret_cast<const char*>(at) + kFetchAheadBytes);
}

/// Rows of keys or values: `count` of `width` numbers.
template <class T>
struct KvRows {
  const T* data;
  int64_t row_stride, count, width;

  [[nodiscard]] KvRows part(int64_t begin, int64_t rows) const {
    return {data + begin * row_stride, row_stride, rows, width};
  }
  /// Multiplies one number per row with the scales behind the rows of int8.
  void scale(float* row_values) const {
    if constexpr (sizeof(T) == 1) {
      for (int64_t s = 0; s < count; ++s) {
        float factor = 0;
        std::memcpy(&factor, data + s * row_stride + width, kInt8ScaleBytes);
        row_values[s] *= factor;
      }
    }
  }
};

/// Lists of numbers, one list for each query head, `stride` numbers apart.
struct OfHeads {
  float* data;
  int64_t stride;

  [[nodiscard]] OfHeads from(int64_t h) const { return {data + h * stride, stride}; }

  [[nodiscard]] float* operator[](size_t h) const {
    return data + static_cast<int64_t>(h) * stride;
  }
};

/// out[h][i] = sum over the rows s of p[h][s] rows[s][i] for kN vectors of i from `at` on, added to
/// out if `adds`. The rows come from memory if kFetch.
template <size_t kH, size_t kN, bool kFetch, class T>
HWY_INLINE void weighted_sum(OfHeads p, const KvRows<T>& rows, int64_t at, bool adds, OfHeads out) {
  const size_t lanes = hn::Lanes(kFloats);
  const T* values = rows.data + at;
  FloatVec sum[kH][kN];
#pragma GCC unroll 8
  for (size_t h = 0; h < kH; ++h) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
      sum[h][n] = adds ? load(out[h] + at + n * lanes) : hn::Zero(kFloats);
    }
  }
  for (int64_t s = 0; s < rows.count; ++s, values += rows.row_stride) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
      if constexpr (kFetch) fetch_ahead(values + n * lanes);
      const FloatVec value = load(values + n * lanes);
#pragma GCC unroll 8
      for (size_t h = 0; h < kH; ++h) {
        sum[h][n] = hn::MulAdd(hn::Set(kFloats, p[h][s]), value, sum[h][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t h = 0; h < kH; ++h) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) store(sum[h][n], out[h] + at + n * lanes);
  }
}

/// All of the weighted sums of kH heads.
template <size_t kH, bool kFetch, class T>
HWY_INLINE void weighted_sums(OfHeads p, const KvRows<T>& rows, bool adds, OfHeads out) {
  // Sums that fit in the registers.
  constexpr size_t kVectors = kH > 2 && HWY_LANES(float) < 16 ? 2 : 4;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  constexpr auto vectors = static_cast<int64_t>(kVectors);
  for (size_t h = 0; h < kH; ++h) rows.scale(p[h]);
  int64_t i = 0;
  for (; i + vectors * lanes <= rows.width; i += vectors * lanes) {
    weighted_sum<kH, kVectors, kFetch>(p, rows, i, adds, out);
  }
  for (; i < rows.width; i += lanes) weighted_sum<kH, 1, kFetch>(p, rows, i, adds, out);
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

/// The scores of as many keys as a vector has lanes, from row `s` on.
template <size_t kH, bool kFetch, class T>
HWY_INLINE void scores_of_lanes(OfHeads q, const KvRows<T>& rows, int64_t s, OfHeads scores) {
  constexpr size_t kLanes = HWY_LANES(float);
  constexpr size_t kKeys = kH < kLanes ? kLanes / kH : 1;  // per pass: their sums fit in registers
  constexpr size_t kPasses = kLanes / kKeys;
  const T* keys = rows.data + s * rows.row_stride;
  FloatVec totals[kH][kPasses];
#pragma GCC unroll 4
  for (size_t pass = 0; pass < kPasses; ++pass) {
    FloatVec sums[kH][kKeys];
#pragma GCC unroll 16
    for (size_t i = 0; i < kH * kKeys; ++i) sums[i / kKeys][i % kKeys] = hn::Zero(kFloats);
    for (int64_t i = 0; i < rows.width; i += static_cast<int64_t>(kLanes)) {
#pragma GCC unroll 16
      for (size_t n = 0; n < kKeys; ++n) {
        const T* at = keys + static_cast<int64_t>(pass * kKeys + n) * rows.row_stride + i;
        if constexpr (kFetch) fetch_ahead(at);
        const FloatVec key = load(at);
#pragma GCC unroll 4
        for (size_t h = 0; h < kH; ++h) sums[h][n] = hn::MulAdd(load(q[h] + i), key, sums[h][n]);
      }
    }
#pragma GCC unroll 4
    for (size_t h = 0; h < kH; ++h) totals[h][pass] = sums_of_each<kKeys>(sums[h]);
  }
#pragma GCC unroll 4
  for (size_t h = 0; h < kH; ++h) store(sums_of_each<kPasses>(totals[h]), scores[h] + s);
}

/// scores[h][s] = q[h] . rows[s]. The rows come from memory if kFetch.
template <size_t kH, bool kFetch, class T>
HWY_INLINE void scores_of(OfHeads q, const KvRows<T>& rows, OfHeads scores) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t s = 0;
  for (; s + lanes <= rows.count; s += lanes) scores_of_lanes<kH, kFetch>(q, rows, s, scores);
  for (; s < rows.count; ++s) {
    const T* key = rows.data + s * rows.row_stride;
    for (size_t h = 0; h < kH; ++h) {
      FloatVec sums = hn::Zero(kFloats);
      for (int64_t i = 0; i < rows.width; i += lanes) {
        sums = hn::MulAdd(load(q[h] + i), load(key + i), sums);
      }
      scores[h][s] = hn::GetLane(hn::SumOfLanes(kFloats, sums));
    }
  }
  for (size_t h = 0; h < kH; ++h) rows.scale(scores[h]);
}

/// Calls work<kH, kFetch>(h) for heads h to h + kH - 1, from h on: as many at a time as possible,
/// at most kMost. The first call reads the rows from memory.
template <size_t kMost, bool kFetch, class Work>
HWY_INLINE void for_groups_of_heads(int64_t h, int64_t num, const Work& work) {
  constexpr auto most = static_cast<int64_t>(kMost);
  const bool fits = h + most <= num;
  if (fits) {
    work.template operator()<kMost, kFetch>(h);
    for (h += most; h + most <= num; h += most) work.template operator()<kMost, false>(h);
  }
  if constexpr (kMost > 1) {
    if (fits) return for_groups_of_heads<kMost / 2, false>(h, num, work);
    for_groups_of_heads<kMost / 2, kFetch>(h, num, work);
  }
}

/// Calls work(begin, part) for parts of the rows that stay in the first-level cache while all query
/// heads of a KV head read them.
template <class T, class Work>
HWY_INLINE void for_each_part(const KvRows<T>& rows, const Work& work) {
  constexpr int64_t kPartBytes = 16384;
  const int64_t fitting = kPartBytes / (rows.width * static_cast<int64_t>(sizeof(T)));
  const int64_t step = std::max<int64_t>(16, fitting / 16 * 16);
  for (int64_t begin = 0; begin < rows.count; begin += step) {
    work(begin, rows.part(begin, std::min(step, rows.count - begin)));
  }
}

/// One query (decoding); reads keys and values once, without copying them.
template <class T, class K>
void decode_heads(const AttentionJob& job, const AttentionParts& parts) {
  const int64_t batch = parts.batch, kv_head = parts.kv_head;
  const Sizes z(job);
  const Mask mask(job, batch);
  std::vector<int64_t> readers;  // query heads of the KV head
  for (int64_t h = 0; h < job.num_heads; ++h) {
    if (job.kv_head[h] == kv_head) readers.push_back(h);
  }
  const int64_t* heads = readers.data();
  const auto num = static_cast<int64_t>(readers.size());
  Scratch scratch(num * (2 * z.width + z.keys + 1));
  float* q = scratch.take(num * z.width);
  float* out = scratch.take(num * z.width);
  float* scores = scratch.take(num * z.keys);
  const Columns columns = columns_of(mask, z, 0, 1);
  const int64_t count = job.num_keys - columns.begin;
  const auto rows_of = [&](const HeadsView& view) {
    const K* data = head<K>(view, batch, kv_head) + columns.begin * view.row_stride;
    return KvRows<K>{data, view.row_stride, count, z.width};
  };
  for (int64_t i = 0; i < num; ++i) {
    pack(head<T>(job.q, batch, heads[i]), 0, 1, z.width, job.scale, q + i * z.width);
  }
  for_each_part(rows_of(job.k), [&](int64_t begin, const KvRows<K>& keys) {
    const OfHeads all_q{q, z.width};
    const OfHeads to{scores + columns.begin + begin, z.keys};
    for_groups_of_heads<2, true>(0, num, [&]<size_t kH, bool kFetch>(int64_t h) {
      scores_of<kH, kFetch>(all_q.from(h), keys, to.from(h));
    });
  });
  float* sums = scratch.take(num);
  for (int64_t i = 0; i < num; ++i) {
    float* row = scores + i * z.keys;
    float* seen = row + columns.begin;
    if (job.soft_cap > 0) cap_scores(seen, columns.size(), job.soft_cap, nullptr);
    mask.apply(row, 0, columns);
    const float top = largest(seen, columns.size());
    sums[i] = exponentials(seen, columns.size(), top);
    job.log_sums[batch * job.num_heads + heads[i]] = top + std::log(sums[i]);
  }
  for_each_part(rows_of(job.v), [&](int64_t begin, const KvRows<K>& values) {
    const OfHeads p{scores + columns.begin + begin, z.keys};
    const OfHeads to{out, z.width};
    for_groups_of_heads<4, true>(0, num, [&]<size_t kH, bool kFetch>(int64_t h) {
      weighted_sums<kH, kFetch>(p.from(h), values, begin > 0, to.from(h));
    });
  });
  for (int64_t i = 0; i < num; ++i) {
    T* to = head_to_write<T>(job.out, batch, heads[i]);
    unpack(out + i * z.width, 1, z.width, 1 / sums[i], to, 0);
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
void backward_heads(const AttentionJob& job, const AttentionParts& parts) {
  const int64_t batch = parts.batch, kv_head = parts.kv_head;
  const Sizes z(job);
  const Mask mask(job, batch);
  Scratch scratch(BackwardScratch::floats(z, job));
  const BackwardScratch b(scratch, z, job, batch);
  const T* k = head<T>(job.k, batch, kv_head);
  pack_transposed(k, job.k.row_stride, job.num_keys, z.width, z.keys, b.k_t);
  pack_transposed(head<T>(job.v, batch, kv_head), job.v.row_stride, job.num_keys, z.width, z.keys,
                  b.v_t);
  pack(k, job.k.row_stride, job.num_keys, z.width, 1, b.k);
  const KvSums sums{b.dk, b.dv, z.keys * z.width};
  for_each_backward_part<T>(job, parts, 1, sums, [&](int64_t h, int64_t begin) {
    backward_block<T>(job, mask, z, b, {batch, h, begin});
  });
}

template <class T, class K>
void forward_typed(const AttentionJob& job, const AttentionParts& parts) {
  job.num_queries == 1 && job.dropout.p == 0 ? decode_heads<T, K>(job, parts)
                                             : forward_heads<T, K>(job, parts);
}

void forward_task(const AttentionJob& job, const AttentionParts& parts) {
  if (job.has_int8_keys) {
    return job.is_bf16 ? decode_heads<uint16_t, int8_t>(job, parts)
                       : decode_heads<float, int8_t>(job, parts);
  }
  if (job.is_bf16) return forward_typed<uint16_t, uint16_t>(job, parts);
  job.has_bf16_keys ? forward_typed<float, uint16_t>(job, parts)
                    : forward_typed<float, float>(job, parts);
}
void backward_task(const AttentionJob& job, const AttentionParts& parts) {
  job.is_bf16 ? backward_heads<uint16_t>(job, parts) : backward_heads<float>(job, parts);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(forward_task);
HWY_EXPORT(backward_task);

void attention_forward(const AttentionJob& job, const AttentionParts& parts) {
  if (job.is_bf16 && job.num_queries > 1 && has_bf16_products()) {
    return attention_forward_pairs(job, parts);
  }
  HWY_DYNAMIC_DISPATCH(forward_task)(job, parts);
}
void attention_backward(const AttentionJob& job, const AttentionParts& parts) {
  if (job.is_bf16 && has_bf16_products()) return attention_backward_pairs(job, parts);
  HWY_DYNAMIC_DISPATCH(backward_task)(job, parts);
}
}  // namespace cleave::inline kernels
#endif
