#include "cleave/kernels/cpu/few_rows_loops.h"

#include <algorithm>

#include "cleave/kernels/cpu/kernel_job.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/few_rows_loops.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

size_t lanes_of_floats() {
  return hn::Lanes(kFloats);
}

/// Elements of a row per iteration of the vector loop.
template <class T>
size_t step() {
  return sizeof(T) == 2 ? 2 * lanes_of_floats() : lanes_of_floats();
}

/// Adds W[n] . x[r] over one step for kN rows of the matrix, `in` apart, and kR rows of x. In a
/// vector of bf16 pairs, odd elements are already the upper halves of fp32 numbers and even ones
/// are shifted there. Therefore x is packed with even and odd elements apart.
template <size_t kR, size_t kN>
HWY_INLINE void add_step(const float* weight, size_t in, const float* x, size_t x_stride,
                         FloatVec (&sum)[kN][kR]) {
  FloatVec w[kN];
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) w[n] = load(weight + n * in);
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    const FloatVec row = load(x + r * x_stride);
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) sum[n][r] = hn::MulAdd(w[n], row, sum[n][r]);
  }
}
template <size_t kR, size_t kN>
HWY_INLINE void add_step(const uint16_t* weight, size_t in, const float* x, size_t x_stride,
                         FloatVec (&sum)[kN][kR]) {
  const hn::RebindToUnsigned<Floats> words;
  FloatVec even[kN], odd[kN];
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) {
    const auto pairs = hn::LoadU(words, reinterpret_cast<const uint32_t*>(weight + n * in));
    even[n] = hn::BitCast(kFloats, hn::ShiftLeft<16>(pairs));
    odd[n] = hn::BitCast(kFloats, hn::And(pairs, hn::Set(words, 0xFFFF0000U)));
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    const float* row = x + r * x_stride;
    const FloatVec x_even = load(row);
    const FloatVec x_odd = load(row + lanes_of_floats());
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
      sum[n][r] = hn::MulAdd(odd[n], x_odd, hn::MulAdd(even[n], x_even, sum[n][r]));
    }
  }
}

/// A range of the summed dim, so short that this part of all rows of x stays in the L1 cache.
struct Terms {
  size_t begin, end;
};

template <size_t kR, size_t kN, size_t kChains>
HWY_INLINE void set_zero(FloatVec (&sum)[kChains][kN][kR]) {
#pragma GCC unroll 8
  for (size_t c = 0; c < kChains; ++c) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
#pragma GCC unroll 8
      for (size_t r = 0; r < kR; ++r) sum[c][n][r] = hn::Zero(kFloats);
    }
  }
}

/// The sum of an element: of the lanes of all its chains.
template <size_t kR, size_t kN, size_t kChains>
HWY_INLINE float total_of(const FloatVec (&sum)[kChains][kN][kR], size_t n, size_t r) {
  FloatVec chains = sum[0][n][r];
#pragma GCC unroll 8
  for (size_t c = 1; c < kChains; ++c) chains = hn::Add(chains, sum[c][n][r]);
  return hn::GetLane(hn::SumOfLanes(kFloats, chains));
}

/// Adds the terms of one range to kN columns of y, from `column` on. Each element is computed as
/// kChains independent sums, to hide latency.
template <class T, size_t kR, size_t kN, size_t kChains>
void dot(const FewRowsJob& job, int64_t column, Terms terms) {
  const auto in = static_cast<size_t>(job.in);
  const auto stride = static_cast<size_t>(few_rows_stride(job.in));
  const T* weight = static_cast<const T*>(job.weight) + static_cast<size_t>(column) * in;
  FloatVec sum[kChains][kN][kR];
  set_zero(sum);
  const size_t ahead = kN == 1 ? kFetchAheadBytes / sizeof(T) : kN * in;
  size_t i = terms.begin;
  for (; i + kChains * step<T>() <= terms.end; i += kChains * step<T>()) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kChains; ++c) {
      const size_t at = i + c * step<T>();
#pragma GCC unroll 8
      for (size_t n = 0; n < kN; ++n) hwy::Prefetch(weight + n * in + at + ahead);
      add_step(weight + at, in, job.x + at, stride, sum[c]);
    }
  }
  for (; i + step<T>() <= terms.end; i += step<T>()) {
    add_step(weight + i, in, job.x + i, stride, sum[0]);
  }
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      float total = total_of(sum, n, r);
      for (size_t k = i; k < terms.end; ++k) {
        total += load_one(weight + n * in + k) * job.x[r * stride + k];
      }
      float& y = job.y[r * static_cast<size_t>(job.y_stride) + static_cast<size_t>(column) + n];
      y = terms.begin == 0 ? total : y + total;
    }
  }
}

template <class T, size_t kR>
void dots(const FewRowsJob& job, int64_t begin, int64_t end) {
  const auto in = static_cast<size_t>(job.in);
  // One row of the matrix is read at a time, sequentially, which is faster than reading rows in
  // parallel. With many rows of x, loading x from the L1 cache dominates, so two rows of the matrix
  // share each load.
  constexpr int64_t kN = kR <= 4 ? 1 : 2;
  constexpr size_t kChains = kR <= 2 ? 4 : kR <= 4 ? 2 : 1;
  // Equal ranges of at most kCached elements over all rows.
  constexpr size_t kCached = 8192;
  const size_t count = hwy::RoundUpTo(in * kR, kCached) / kCached;
  const size_t stretch = kR <= 2 ? in : hwy::RoundUpTo((in + count - 1) / count, 64);
  for (size_t from = 0; from < in; from += stretch) {
    const Terms terms{from, std::min(in, from + stretch)};
    int64_t column = begin;
    for (; column + kN <= end; column += kN) dot<T, kR, size_t{kN}, kChains>(job, column, terms);
    for (; column < end; ++column) dot<T, kR, 1, kChains>(job, column, terms);
  }
}

template <class T, size_t kR = 1>
void range_of_rows(const FewRowsJob& job, int64_t begin, int64_t end) {
  if (job.rows == int64_t{kR}) return dots<T, kR>(job, begin, end);
  if constexpr (kR < kMaxFewRows) range_of_rows<T, kR + 1>(job, begin, end);
}

void range_task(const FewRowsJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? range_of_rows<uint16_t>(job, begin, end) : range_of_rows<float>(job, begin, end);
}

template <class T>
void pack_row(const T* from, size_t in, float* to) {
  const size_t lanes = lanes_of_floats();
  size_t i = 0;
  for (; sizeof(T) == 2 && i + 2 * lanes <= in; i += 2 * lanes) {
    for (size_t k = 0; k < lanes; ++k) {
      to[i + k] = load_one(from + i + 2 * k);
      to[i + lanes + k] = load_one(from + i + 2 * k + 1);
    }
  }
  for (; i < in; ++i) to[i] = load_one(from + i);
}

void pack_task(const FewRowsJob& job, const void* x, float* to) {
  for (int64_t r = 0; r < job.rows; ++r, to += few_rows_stride(job.in)) {
    const auto in = static_cast<size_t>(job.in);
    job.is_bf16 ? pack_row(static_cast<const uint16_t*>(x) + r * job.in, in, to)
                : pack_row(static_cast<const float*>(x) + r * job.in, in, to);
  }
}

template <class T>
void finish(const FewRowsJob& job, int64_t begin, int64_t end) {
  const auto lanes = static_cast<int64_t>(lanes_of_floats());
  const auto* bias = static_cast<const T*>(job.bias);
  for (int64_t r = 0; r < job.rows; ++r) {
    const float* y = job.y + r * job.y_stride;
    T* to = static_cast<T*>(job.result) + r * job.out;
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const FloatVec sums = load(y + i);
      store(bias == nullptr ? sums : hn::Add(sums, load(bias + i)), to + i);
    }
    for (; i < end; ++i) store_one(bias == nullptr ? y[i] : y[i] + load_one(bias + i), to + i);
  }
}

void finish_task(const FewRowsJob& job, int64_t begin, int64_t end) {
  if (job.is_bf16) return finish<uint16_t>(job, begin, end);
  if (job.bias != nullptr || job.result != job.y) finish<float>(job, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(range_task);
HWY_EXPORT(pack_task);
HWY_EXPORT(finish_task);

void few_rows_pack(const FewRowsJob& job, const void* x, float* to) {
  HWY_DYNAMIC_DISPATCH(pack_task)(job, x, to);
}
void few_rows_range(const FewRowsJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(range_task)(job, begin, end);
}
void few_rows_finish(const FewRowsJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(finish_task)(job, begin, end);
}
}  // namespace cleave::inline kernels
#endif
