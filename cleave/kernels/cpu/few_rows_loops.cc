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
  for (size_t j = 0; j < kN; ++j) {
    const FloatVec w = load(weight[j] + i);
    hwy::Prefetch(weight[j] + i + ahead);
    for (size_t r = 0; r < kR; ++r)
      sum[r][j] = hn::MulAdd(w, load(x + r * x_stride + i), sum[r][j]);
  }
}
template <size_t kR, size_t kN>
HWY_INLINE void add_step(const uint16_t* const* weight, const float* x, size_t x_stride, size_t i,
                         size_t ahead, FloatVec (&sum)[kR][kN]) {
  const hn::RebindToUnsigned<Floats> words;
  const size_t lanes = hn::Lanes(kFloats);
  for (size_t j = 0; j < kN; ++j) {
    hwy::Prefetch(weight[j] + i + ahead);
    const auto pairs = hn::LoadU(words, reinterpret_cast<const uint32_t*>(weight[j] + i));
    const FloatVec even = hn::BitCast(kFloats, hn::ShiftLeft<16>(pairs));
    const FloatVec odd = hn::BitCast(kFloats, hn::And(pairs, hn::Set(words, 0xFFFF0000U)));
    for (size_t r = 0; r < kR; ++r) {
      const float* row = x + r * x_stride + i;
      sum[r][j] = hn::MulAdd(even, load(row), sum[r][j]);
      sum[r][j] = hn::MulAdd(odd, load(row + lanes), sum[r][j]);
    }
  }
}

/// kN columns of y from as many rows of the matrix.
template <class T, size_t kR, size_t kN>
void dot(const FewRowsJob& job, int64_t column) {
  const auto in = static_cast<size_t>(job.in);
  const T* weight[kN];
  for (size_t j = 0; j < kN; ++j) {
    weight[j] = static_cast<const T*>(job.weight) + (static_cast<size_t>(column) + j) * in;
  }
  FloatVec sum[kR][kN];
  for (size_t r = 0; r < kR; ++r) {
    for (size_t j = 0; j < kN; ++j) sum[r][j] = hn::Zero(kFloats);
  }
  size_t i = 0;
  for (; i + step<T>() <= in; i += step<T>()) add_step(weight, job.x, in, i, kN * in, sum);
  for (size_t r = 0; r < kR; ++r) {
    for (size_t j = 0; j < kN; ++j) {
      float total = hn::GetLane(hn::SumOfLanes(kFloats, sum[r][j]));
      for (size_t k = i; k < in; ++k) total += load_one(weight[j] + k) * job.x[r * in + k];
      job.y[r * static_cast<size_t>(job.out) + static_cast<size_t>(column) + j] = total;
    }
  }
}

template <class T, size_t kR>
void dots(const FewRowsJob& job, int64_t begin, int64_t end) {
  constexpr int64_t kN = kR <= 4 ? 4 : 2;  // as many sums as fit the registers
  int64_t column = begin;
  for (; column + kN <= end; column += kN) dot<T, kR, size_t{kN}>(job, column);
  for (; column < end; ++column) dot<T, kR, 1>(job, column);
}

/// The matrix lies by columns of y: each of its rows adds to all of y.
template <class T, size_t kR>
void columns(const FewRowsJob& job, int64_t begin, int64_t end) {
  constexpr size_t kDepth = 8;  // rows of the matrix that are read side by side
  const auto in = static_cast<size_t>(job.in);
  const auto out = static_cast<size_t>(job.out);
  const size_t lanes = lanes_of_floats();
  const auto first = static_cast<size_t>(begin);
  const auto last = static_cast<size_t>(end);
  for (size_t r = 0; r < kR; ++r) std::fill(job.y + r * out + first, job.y + r * out + last, 0.0F);
  for (size_t k = 0; k < in; k += kDepth) {
    const size_t depth = std::min(kDepth, in - k);
    const T* weight = static_cast<const T*>(job.weight) + k * out;
    size_t n = first;
    for (; n + lanes <= last; n += lanes) {
      FloatVec sum[kR];
      for (size_t r = 0; r < kR; ++r) sum[r] = load(job.y + r * out + n);
      for (size_t d = 0; d < depth; ++d) {
        const FloatVec w = load(weight + d * out + n);
        for (size_t r = 0; r < kR; ++r) {
          sum[r] = hn::MulAdd(w, hn::Set(kFloats, job.x[r * in + k + d]), sum[r]);
        }
      }
      for (size_t r = 0; r < kR; ++r) store(sum[r], job.y + r * out + n);
    }
    for (; n < last; ++n) {
      for (size_t d = 0; d < depth; ++d) {
        for (size_t r = 0; r < kR; ++r) {
          job.y[r * out + n] += load_one(weight + d * out + n) * job.x[r * in + k + d];
        }
      }
    }
  }
}

template <class T, size_t kR>
void range_of(const FewRowsJob& job, int64_t begin, int64_t end) {
  job.by_columns ? columns<T, kR>(job, begin, end) : dots<T, kR>(job, begin, end);
}

template <class T, size_t kR = 1>
void range_of_rows(const FewRowsJob& job, int64_t begin, int64_t end) {
  if (job.rows == int64_t{kR}) return range_of<T, kR>(job, begin, end);
  if constexpr (kR < kMaxRows) range_of_rows<T, kR + 1>(job, begin, end);
}

void range_task(const FewRowsJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? range_of_rows<uint16_t>(job, begin, end) : range_of_rows<float>(job, begin, end);
}

void pack_task(const FewRowsJob& job, const void* x, float* to) {
  const auto count = static_cast<size_t>(job.rows * job.in);
  if (!job.is_bf16) {
    std::copy_n(static_cast<const float*>(x), count, to);
    return;
  }
  const auto* from = static_cast<const uint16_t*>(x);
  const auto in = static_cast<size_t>(job.in);
  const size_t lanes = lanes_of_floats();
  for (size_t r = 0; r < static_cast<size_t>(job.rows); ++r, from += in, to += in) {
    size_t i = 0;
    for (; !job.by_columns && i + 2 * lanes <= in; i += 2 * lanes) {
      for (size_t k = 0; k < lanes; ++k) {
        to[i + k] = load_one(from + i + 2 * k);
        to[i + lanes + k] = load_one(from + i + 2 * k + 1);
      }
    }
    for (; i < in; ++i) to[i] = load_one(from + i);
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
