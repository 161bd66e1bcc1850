#include <type_traits>

#include "cleave/kernels/cpu/reorder.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/transpose.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

// A tile of kTileRows x kTileColumns is transposed in a buffer and then written row by row, because
// rows at power-of-two strides would evict each other from the cache. A row of it is a cache line,
// a column four.
template <class T>
constexpr int64_t kTileRows = 256 / static_cast<int64_t>(sizeof(T));
template <class T>
constexpr int64_t kTileColumns = 64 / static_cast<int64_t>(sizeof(T));

template <class T>
constexpr int64_t kSquare = 16 / static_cast<int64_t>(sizeof(T));  // elements of 128 bits

// transpose_square() transposes kSquare x kSquare elements into `to`, whose rows are kTileRows
// long.

#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void transpose_square(const T* from, int64_t from_stride, T* to) {
  for (int64_t i = 0; i < kSquare<T> * kSquare<T>; ++i) {
    to[i % kSquare<T> * kTileRows<T> + i / kSquare<T>] =
        from[i / kSquare<T> * from_stride + i % kSquare<T>];
  }
}
#else
HWY_INLINE void transpose_square(const float* from, int64_t from_stride, float* to) {
  const hn::FixedTag<float, 4> four;
  const hn::Repartition<double, decltype(four)> pairs;
  const auto a = hn::LoadU(four, from);
  const auto b = hn::LoadU(four, from + from_stride);
  const auto c = hn::LoadU(four, from + 2 * from_stride);
  const auto d = hn::LoadU(four, from + 3 * from_stride);
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(four, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(four, a, b));
  const auto cd_low = hn::BitCast(pairs, hn::InterleaveLower(four, c, d));
  const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(four, c, d));
  hn::StoreU(hn::BitCast(four, hn::InterleaveLower(pairs, ab_low, cd_low)), four, to);
  hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(pairs, ab_low, cd_low)), four,
             to + kTileRows<float>);
  hn::StoreU(hn::BitCast(four, hn::InterleaveLower(pairs, ab_high, cd_high)), four,
             to + 2 * kTileRows<float>);
  hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(pairs, ab_high, cd_high)), four,
             to + 3 * kTileRows<float>);
}

HWY_INLINE void transpose_square(const uint16_t* from, int64_t from_stride, uint16_t* to) {
  const hn::FixedTag<uint16_t, 8> eight;
  const hn::Repartition<uint32_t, decltype(eight)> words;
  const hn::Repartition<uint64_t, decltype(eight)> halves;
  // Columns 0 to 3, then 4 to 7, of two rows, then of four.
  const auto two = [&](int64_t row, auto interleave) {
    const auto upper = hn::LoadU(eight, from + row * from_stride);
    const auto lower = hn::LoadU(eight, from + (row + 1) * from_stride);
    return hn::BitCast(words, interleave(eight, upper, lower));
  };
  const auto low = [](auto d, auto a, auto b) { return hn::InterleaveLower(d, a, b); };
  const auto high = [](auto d, auto a, auto b) { return hn::InterleaveUpper(d, a, b); };
  const auto write = [&](int64_t column, auto of_column) {
    const auto first = two(0, of_column), second = two(2, of_column);
    const auto third = two(4, of_column), fourth = two(6, of_column);
    for (const bool is_high : {false, true}) {
      const auto upper =
          hn::BitCast(halves, is_high ? high(words, first, second) : low(words, first, second));
      const auto lower =
          hn::BitCast(halves, is_high ? high(words, third, fourth) : low(words, third, fourth));
      uint16_t* const at = to + (column + (is_high ? 2 : 0)) * kTileRows<uint16_t>;
      hn::StoreU(hn::BitCast(eight, low(halves, upper, lower)), eight, at);
      hn::StoreU(hn::BitCast(eight, high(halves, upper, lower)), eight, at + kTileRows<uint16_t>);
    }
  };
  write(0, low);
  write(4, high);
}
#endif

/// Transposes kTileColumns columns of `rows` rows, a multiple of kSquare. With kStreams, writes
/// bypass the caches; the tile must then be whole and `to` aligned to vectors.
template <bool kStreams, class T>
HWY_INLINE void transpose_tile(const TransposeJob<T>& job, const T* from, T* to, int64_t rows) {
  HWY_ALIGN T transposed[kTileColumns<T> * kTileRows<T>];
  for (int64_t r = 0; r < rows; r += kSquare<T>) {
    // Rows are far apart, so the CPU does not prefetch a row's next cache line itself.
    for (int64_t k = r; k < r + kSquare<T>; ++k) {
      __builtin_prefetch(from + k * job.from_stride + 2 * kTileColumns<T>);
    }
    for (int64_t c = 0; c < kTileColumns<T>; c += kSquare<T>) {
      transpose_square(from + r * job.from_stride + c, job.from_stride,
                       transposed + c * kTileRows<T> + r);
    }
  }
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  for (int64_t c = 0; c < kTileColumns<T>; ++c) {
    const T* const column = transposed + c * kTileRows<T>;
    T* const place = to + c * job.to_stride;
    int64_t r = 0;
    for (; r + lanes <= rows; r += lanes) {
      const auto v = hn::Load(tag, column + r);
      if constexpr (kStreams) {
        hn::Stream(v, tag, place + r);
      } else {
        hn::StoreU(v, tag, place + r);
      }
    }
    for (; r < rows; ++r) place[r] = column[r];
  }
}

template <bool kStreams, class T>
void transpose(const TransposeJob<T>& job, int64_t begin, int64_t end) {
  const auto one_by_one = [&](int64_t r_end, int64_t r, int64_t c_begin) {
    for (; r < r_end; ++r) {
      for (int64_t c = c_begin; c < job.columns; ++c) {
        job.to[c * job.to_stride + r] = job.from[r * job.from_stride + c];
      }
    }
  };
  const int64_t whole_columns = job.columns / kTileColumns<T> * kTileColumns<T>;
  const auto tiles = [&](int64_t r, int64_t rows, auto streams) {
    for (int64_t c = 0; c < whole_columns; c += kTileColumns<T>) {
      transpose_tile<streams()>(job, job.from + r * job.from_stride + c,
                                job.to + c * job.to_stride + r, rows);
    }
    one_by_one(r + rows, r, whole_columns);
    return r + rows;
  };
  int64_t r = begin;
  while (r + kTileRows<T> <= end) r = tiles(r, kTileRows<T>, std::bool_constant<kStreams>());
  if (kStreams) hwy::FlushStream();
  r = tiles(r, (end - r) / kSquare<T> * kSquare<T>, std::false_type());
  one_by_one(end, r, 0);
}

// Larger results would be evicted from the caches before they are read.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

template <class T>
void transpose_any(const TransposeJob<T>& job, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> tag;
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(job.to + begin) % (sizeof(T) * hn::Lanes(tag)) == 0 &&
      job.to_stride % static_cast<int64_t>(hn::Lanes(tag)) == 0;
  const int64_t bytes = static_cast<int64_t>(sizeof(T)) * job.to_stride * job.columns;
  is_aligned&& bytes > kStreamedBytes ? transpose<true>(job, begin, end)
                                      : transpose<false>(job, begin, end);
}

void transpose_floats(const TransposeJob<float>& job, int64_t begin, int64_t end) {
  transpose_any(job, begin, end);
}

void transpose_halves(const TransposeJob<uint16_t>& job, int64_t begin, int64_t end) {
  transpose_any(job, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(transpose_floats);
HWY_EXPORT(transpose_halves);

void transpose_rows(const TransposeJob<float>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(transpose_floats)(job, begin, end);
}

void transpose_rows(const TransposeJob<uint16_t>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(transpose_halves)(job, begin, end);
}
}  // namespace cleave::inline kernels
#endif
