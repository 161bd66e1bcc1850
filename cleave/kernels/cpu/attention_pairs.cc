#include <algorithm>
#include <cmath>
#include <cstring>

#include "cleave/kernels/cpu/attention_rows.h"
#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/torch_internals/op_clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/attention_pairs.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

using Bf16 = uint16_t;

void multiply_timed(const PairProduct& product) {
  const ProductTime time;
  multiply_pairs(product);
}

/// Copies rows of bf16 as [rows, width / 2] pairs along the row. `width` is even.
void copy_rows(const Bf16* from, int64_t row_stride, int64_t rows, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * width / 2, from + r * row_stride,
                static_cast<size_t>(width) * sizeof(Bf16));
  }
}

/// The transpose of copy_rows's result: [width / 2, ld], with zeros in columns `rows` to ld.
void transpose_pairs(const Bf16* from, int64_t row_stride, int64_t rows, int64_t width, int64_t ld,
                     uint32_t* to) {
  constexpr int64_t kBlock = 16;  // rows per block, so that few cache lines are written in turn
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(rows, begin + kBlock);
    for (int64_t i = 0; i < width / 2; ++i) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(to + i * ld + r, from + r * row_stride + 2 * i, sizeof(uint32_t));
      }
    }
  }
  for (int64_t i = 0; i < width / 2; ++i) std::fill(to + i * ld + rows, to + (i + 1) * ld, 0U);
}

/// Pairs along the column, of two rows each: [padded / 2, width], with zeros for rows from `rows`
/// on.
void pair_rows(const Bf16* from, int64_t row_stride, int64_t rows, int64_t width, int64_t padded,
               uint32_t* to) {
  for (int64_t r = 0; r < padded; r += 2, to += width) {
    const Bf16* low = from + r * row_stride;
    const Bf16* high = low + row_stride;
    if (r + 1 < rows) {
      for (int64_t i = 0; i < width; ++i) to[i] = low[i] | uint32_t{high[i]} << 16;
    } else if (r < rows) {
      std::copy(low, low + width, to);
    } else {
      std::fill(to, to + width, 0U);
    }
  }
}

/// The same pairs from `columns` columns of fp32 rows, rounded to bf16; all rows are `ld` apart.
void pair_rounded_rows(const float* from, int64_t rows, int64_t columns, int64_t ld, uint32_t* to) {
  const hn::RebindToUnsigned<Floats> words;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t s = 0; s < columns; s += lanes) {
      const auto low = rounded_bits(load(from + r * ld + s));
      const auto high =
          r + 1 < rows ? rounded_bits(load(from + (r + 1) * ld + s)) : hn::Zero(words);
      hn::StoreU(hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(words, 0xFFFF0000U))), words,
                 to + r / 2 * ld + s);
    }
  }
}

/// Rounds fp32 numbers to bf16.
void round_row(const float* from, int64_t count, uint32_t* pairs) {
  auto* to = reinterpret_cast<Bf16*>(pairs);
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t s = 0; s < count; s += lanes) store(load(from + s), to + s);
}

HWY_INLINE void scale_row(float* row, int64_t columns, float scale) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, scale);
  for (int64_t s = 0; s < columns; s += lanes) store(hn::Mul(load(row + s), factor), row + s);
}

uint32_t* take_pairs(Scratch& scratch, int64_t count) {
  return reinterpret_cast<uint32_t*>(scratch.take(count));
}

void forward_pairs_task(const AttentionJob& job, const AttentionParts& parts) {
  const int64_t batch = parts.batch, kv_head = parts.kv_head;
  const Sizes z(job);
  const Mask mask(job, batch);
  const int64_t half = z.width / 2;
  const int64_t kept_floats = KeptProbabilities::floats(job, z.keys);
  Scratch scratch(2 * half * z.keys + kRows * (half + z.keys + z.keys / 2 + z.width) + kept_floats +
                  128);
  uint32_t* k_t = take_pairs(scratch, half * z.keys);
  uint32_t* v = take_pairs(scratch, z.keys / 2 * z.width);
  uint32_t* q = take_pairs(scratch, kRows * half);
  uint32_t* p = take_pairs(scratch, kRows * z.keys / 2);
  float* scores = scratch.take(kRows * z.keys);
  float* out = scratch.take(kRows * z.width);
  const KeptProbabilities kept(job, batch, scratch.take(kept_floats));
  transpose_pairs(head<Bf16>(job.k, batch, kv_head), job.k.row_stride, job.num_keys, z.width,
                  z.keys, k_t);
  pair_rows(head<Bf16>(job.v, batch, kv_head), job.v.row_stride, job.num_keys, z.width, z.keys, v);
  for_each_block(job, parts, [&](int64_t h, int64_t begin) {
    const int64_t rows = std::min(kRows, job.num_queries - begin);
    const Columns columns = columns_of(mask, z, begin, rows);
    const int64_t first = columns.begin;
    copy_rows(head<Bf16>(job.q, batch, h) + begin * job.q.row_stride, job.q.row_stride, rows,
              z.width, q);
    multiply_timed({rows, columns.size(), half, q, half, 1, k_t + first, z.keys, scores + first,
                    z.keys, false});
    float* log_sums = job.log_sums + (batch * job.num_heads + h) * job.num_queries + begin;
    float inverse[kRows];
    for (int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * z.keys + first;
      scale_row(row, columns.size(), job.scale);
      if (job.soft_cap > 0) cap_scores(row, columns.size(), job.soft_cap, nullptr);
      mask.apply(scores + r * z.keys, begin + r, columns);
      const float top = largest(row, columns.size());
      const float sum = exponentials(row, columns.size(), top);
      log_sums[r] = top + std::log(sum);
      inverse[r] = 1 / sum;
      if (kept.drops()) {
        multiply_row(kept.row(h, begin + r, first, columns.size()), columns.size(), row);
      }
      round_row(row, columns.size(), p + (r * z.keys + first) / 2);
    }
    multiply_timed({rows, z.width, columns.size() / 2, p + first / 2, z.keys / 2, 1,
                    v + first / 2 * z.width, z.width, out, z.width, false});
    Bf16* to = head_to_write<Bf16>(job.out, batch, h) + begin * job.out.row_stride;
    for (int64_t r = 0; r < rows; ++r) {
      unpack(out + r * z.width, 1, z.width, inverse[r], to + r * job.out.row_stride, 0);
    }
  });
}

/// Scratch memory of backward: for the KV head, then for a block of queries.
struct PairScratch {
  PairScratch(Scratch& s, const Sizes& z, const AttentionJob& job, int64_t batch)
      : k_t(take_pairs(s, z.width / 2 * z.keys)),
        v_t(take_pairs(s, z.width / 2 * z.keys)),
        k(take_pairs(s, z.keys / 2 * z.width)),
        dk(s.take(z.keys * z.width)),
        dv(s.take(z.keys * z.width)),
        q(take_pairs(s, kRows * z.width / 2)),
        dout(take_pairs(s, kRows * z.width / 2)),
        q_pairs(take_pairs(s, kRows / 2 * z.width)),
        dout_pairs(take_pairs(s, kRows / 2 * z.width)),
        p_pairs(take_pairs(s, kRows / 2 * z.keys)),
        ds_pairs(take_pairs(s, kRows / 2 * z.keys)),
        ds_rows(take_pairs(s, kRows * z.keys / 2)),
        p(s.take(kRows * z.keys)),
        ds(s.take(kRows * z.keys)),
        dq(s.take(kRows * z.width)),
        slopes(job.soft_cap > 0 ? s.take(kRows * z.keys) : nullptr),
        kept(job, batch, s.take(KeptProbabilities::floats(job, z.keys))) {}
  static int64_t floats(const Sizes& z, const AttentionJob& job) {
    return 4 * z.width * z.keys + 3 * kRows * z.width +
           (job.soft_cap > 0 ? 5 : 4) * kRows * z.keys + KeptProbabilities::floats(job, z.keys) +
           256;
  }
  uint32_t *k_t, *v_t, *k;
  float *dk, *dv;
  uint32_t *q, *dout, *q_pairs, *dout_pairs, *p_pairs, *ds_pairs, *ds_rows;
  float *p, *ds, *dq;
  float* slopes;  // of the capped scores; null without a cap
  KeptProbabilities kept;
};

/// A block of queries of one head.
struct Block {
  int64_t batch, head, begin, rows;
  Columns columns;

  [[nodiscard]] const Bf16* rows_of(const HeadsView& view) const {
    return HWY_NAMESPACE::head<Bf16>(view, batch, head) + begin * view.row_stride;
  }
};

/// Computes probabilities, after dropout, into b.p and the scores' gradients into b.ds.
void gradients_of_scores(const AttentionJob& job, const Mask& mask, const Sizes& z,
                         const PairScratch& b, const Block& at) {
  const int64_t half = z.width / 2;
  copy_rows(at.rows_of(job.q), job.q.row_stride, at.rows, z.width, b.q);
  copy_rows(at.rows_of(job.dout), job.dout.row_stride, at.rows, z.width, b.dout);
  const float* log_sums =
      job.log_sums + (at.batch * job.num_heads + at.head) * job.num_queries + at.begin;
  const int64_t first = at.columns.begin;
  const int64_t count = at.columns.size();
  multiply_timed(
      {at.rows, count, half, b.q, half, 1, b.k_t + first, z.keys, b.p + first, z.keys, false});
  multiply_timed(
      {at.rows, count, half, b.dout, half, 1, b.v_t + first, z.keys, b.ds + first, z.keys, false});
  for (int64_t r = 0; r < at.rows; ++r) {
    float* p = b.p + r * z.keys + first;
    scale_row(p, count, job.scale);
    float* slopes = b.slopes == nullptr ? nullptr : b.slopes + r * z.keys + first;
    if (slopes != nullptr) cap_scores(p, count, job.soft_cap, slopes);
    mask.apply(b.p + r * z.keys, at.begin + r, at.columns);
    const float sum = exponentials(p, count, log_sums[r]);
    float* ds = b.ds + r * z.keys + first;
    const float* kept = b.kept.drops() ? b.kept.row(at.head, at.begin + r, first, count) : nullptr;
    if (kept != nullptr) multiply_row(kept, count, ds);
    score_gradients(sum, count, p, ds);
    if (kept != nullptr) multiply_row(kept, count, p);
    if (slopes != nullptr) multiply_row(slopes, count, ds);
  }
}

void backward_block(const AttentionJob& job, const Mask& mask, const Sizes& z, const PairScratch& b,
                    const Block& at) {
  gradients_of_scores(job, mask, z, b, at);
  const int64_t even = (at.rows + 1) / 2 * 2;
  const int64_t first = at.columns.begin;
  const int64_t count = at.columns.size();
  const int64_t reached = std::min(at.columns.end, job.num_keys) - first;
  const int64_t rows_before = first * z.width;
  pair_rows(at.rows_of(job.q), job.q.row_stride, at.rows, z.width, even, b.q_pairs);
  pair_rows(at.rows_of(job.dout), job.dout.row_stride, at.rows, z.width, even, b.dout_pairs);
  pair_rounded_rows(b.p + first, at.rows, count, z.keys, b.p_pairs + first);
  pair_rounded_rows(b.ds + first, at.rows, count, z.keys, b.ds_pairs + first);
  for (int64_t r = 0; r < at.rows; ++r) {
    round_row(b.ds + r * z.keys + first, count, b.ds_rows + (r * z.keys + first) / 2);
  }
  multiply_timed({reached, z.width, even / 2, b.p_pairs + first, 1, z.keys, b.dout_pairs, z.width,
                  b.dv + rows_before, z.width, true});
  multiply_timed({reached, z.width, even / 2, b.ds_pairs + first, 1, z.keys, b.q_pairs, z.width,
                  b.dk + rows_before, z.width, true});
  multiply_timed({at.rows, z.width, count / 2, b.ds_rows + first / 2, z.keys / 2, 1,
                  b.k + rows_before / 2, z.width, b.dq, z.width, false});
  unpack(b.dq, at.rows, z.width, job.scale,
         head_to_write<Bf16>(job.dq, at.batch, at.head) + at.begin * job.dq.row_stride,
         job.dq.row_stride);
}

void backward_pairs_task(const AttentionJob& job, const AttentionParts& parts) {
  const int64_t batch = parts.batch, kv_head = parts.kv_head;
  const Sizes z(job);
  const Mask mask(job, batch);
  Scratch scratch(PairScratch::floats(z, job));
  const PairScratch b(scratch, z, job, batch);
  const Bf16* k = head<Bf16>(job.k, batch, kv_head);
  const Bf16* v = head<Bf16>(job.v, batch, kv_head);
  transpose_pairs(k, job.k.row_stride, job.num_keys, z.width, z.keys, b.k_t);
  transpose_pairs(v, job.v.row_stride, job.num_keys, z.width, z.keys, b.v_t);
  pair_rows(k, job.k.row_stride, job.num_keys, z.width, z.keys, b.k);
  const KvSums sums{b.dk, b.dv, z.keys * z.width};
  for_each_backward_part<Bf16>(job, parts, job.scale, sums, [&](int64_t h, int64_t begin) {
    const int64_t rows = std::min(kRows, job.num_queries - begin);
    backward_block(job, mask, z, b, {batch, h, begin, rows, columns_of(mask, z, begin, rows)});
  });
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(forward_pairs_task);
HWY_EXPORT(backward_pairs_task);

void attention_forward_pairs(const AttentionJob& job, const AttentionParts& parts) {
  HWY_DYNAMIC_DISPATCH(forward_pairs_task)(job, parts);
}
void attention_backward_pairs(const AttentionJob& job, const AttentionParts& parts) {
  HWY_DYNAMIC_DISPATCH(backward_pairs_task)(job, parts);
}
}  // namespace cleave::inline kernels
#endif
