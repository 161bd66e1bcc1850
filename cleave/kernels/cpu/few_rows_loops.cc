#include "cleave/kernels/cpu/few_rows_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/few_rows_loops.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// The order matters: the target is chosen above.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

constexpr size_t kMaxRows = 8;

size_t lanes_of_floats() {
  return hn::Lanes(kFloats);
}

/// Elements of a row that the vector loop reads at once.
template <class T>
size_t step() {
  return sizeof(T) == 2 ? 2 * lanes_of_floats() : lanes_of_floats();
}

/// Adds up W[j] . x[r] over one step for kN rows of the matrix and kR rows of x. Half of a bf16
/// vector's elements are the upper halves of fp32 numbers as they stand, the other half is shifted
/// there, so x has even and odd elements apart. What lies `ahead` elements on is fetched meanwhile:
/// the rows that come next, which the processor does not foresee from one page to another.
template <size_t kR, size_t kN>
HWY_INLINE void add_step(const float* const* weight, const float* x, size_t x_stride, size_t i,
                         size_t ahead, FloatVec (&sum)[kR][kN]) {
  FloatVec w[kN];
#pragma GCC unroll 8
  for (size_t j = 0; j < kN; ++j) {
    hwy::Prefetch(weight[j] + i + ahead);
    w[j] = load(weight[j] + i);
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    const FloatVec row = load(x + r * x_stride + i);
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) sum[r][j] = hn::MulAdd(w[j], row, sum[r][j]);
  }
}
template <size_t kR, size_t kN>
HWY_INLINE void add_step(const uint16_t* const* weight, const float* x, size_t x_stride, size_t i,
                         size_t ahead, FloatVec (&sum)[kR][kN]) {
  const hn::RebindToUnsigned<Floats> words;
  const size_t lanes = hn::Lanes(kFloats);
  FloatVec even[kN], odd[kN];
#pragma GCC unroll 8
  for (size_t j = 0; j < kN; ++j) {
    hwy::Prefetch(weight[j] + i + ahead);
    const auto pairs = hn::LoadU(words, reinterpret_cast<const uint32_t*>(weight[j] + i));
    even[j] = hn::BitCast(kFloats, hn::ShiftLeft<16>(pairs));
    odd[j] = hn::BitCast(kFloats, hn::And(pairs, hn::Set(words, 0xFFFF0000U)));
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    const float* row = x + r * x_stride + i;
    const FloatVec x_even = load(row);
    const FloatVec x_odd = load(row + lanes);
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) {
      sum[r][j] = hn::MulAdd(odd[j], x_odd, hn::MulAdd(even[j], x_even, sum[r][j]));
    }
  }
}

/// A stretch of the sums' terms: so many numbers of every row of x stay in the first-level cache.
struct Terms {
  size_t begin, end;
};

/// kN columns of y from as many rows of the matrix: some of the terms, added to those before.
template <class T, size_t kR, size_t kN>
void dot(const FewRowsJob& job, int64_t column, Terms terms) {
  const auto in = static_cast<size_t>(job.in);
  const auto stride = static_cast<size_t>(few_rows_stride(job.in));
  const T* weight[kN];
  for (size_t j = 0; j < kN; ++j) {
    weight[j] = static_cast<const T*>(job.weight) + (static_cast<size_t>(column) + j) * in;
  }
  FloatVec sum[kR][kN];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) sum[r][j] = hn::Zero(kFloats);
  }
  size_t i = terms.begin;
  for (; i + step<T>() <= terms.end; i += step<T>()) {
    add_step(weight, job.x, stride, i, kN * in, sum);
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    float* y = job.y + r * static_cast<size_t>(job.out) + column;
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) {
      float total = hn::GetLane(hn::SumOfLanes(kFloats, sum[r][j]));
      for (size_t k = i; k < terms.end; ++k) {
        total += load_one(weight[j] + k) * job.x[r * stride + k];
      }
      y[j] = terms.begin == 0 ? total : y[j] + total;
    }
  }
}

template <class T, size_t kR>
void dots(const FewRowsJob& job, int64_t begin, int64_t end) {
  constexpr int64_t kN = kR <= 4 ? 4 : 2;  // as many sums as fit the registers
  const auto in = static_cast<size_t>(job.in);
  // Equal stretches of at most kCached numbers in all rows together.
  constexpr size_t kCached = 8192;
  const size_t count = hwy::RoundUpTo(in * kR, kCached) / kCached;
  const size_t stretch = kR <= 2 ? in : hwy::RoundUpTo((in + count - 1) / count, 64);
  for (size_t from = 0; from < in; from += stretch) {
    const Terms terms{from, std::min(in, from + stretch)};
    int64_t column = begin;
    for (; column + kN <= end; column += kN) dot<T, kR, size_t{kN}>(job, column, terms);
    for (; column < end; ++column) dot<T, kR, 1>(job, column, terms);
  }
}

template <class T, size_t kR = 1>
void range_of_rows(const FewRowsJob& job, int64_t begin, int64_t end) {
  if (job.rows == int64_t{kR}) return dots<T, kR>(job, begin, end);
  if constexpr (kR < kMaxRows) range_of_rows<T, kR + 1>(job, begin, end);
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

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave {
HWY_EXPORT(range_task);
HWY_EXPORT(pack_task);

void few_rows_pack(const FewRowsJob& job, const void* x, float* to) {
  HWY_DYNAMIC_DISPATCH(pack_task)(job, x, to);
}
void few_rows_range(const FewRowsJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(range_task)(job, begin, end);
}
}  // namespace cleave
#endif
