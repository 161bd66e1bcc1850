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
// rows at power-of-two strides would evict each other from the cache.
constexpr int64_t kTileRows = 64, kTileColumns = 16;

/// Transposes 4 x 4 elements into `to`, whose rows are kTileRows long.
HWY_INLINE void transpose_4x4(const float* from, int64_t from_stride, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < 16; ++i)
    to[i % 4 * kTileRows + i / 4] = from[i / 4 * from_stride + i % 4];
#else
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
  hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(pairs, ab_low, cd_low)), four, to + kTileRows);
  hn::StoreU(hn::BitCast(four, hn::InterleaveLower(pairs, ab_high, cd_high)), four,
             to + 2 * kTileRows);
  hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(pairs, ab_high, cd_high)), four,
             to + 3 * kTileRows);
#endif
}

/// Transposes a whole tile. With kStreams, writes bypass the caches; `to` must then be aligned to
/// vectors.
template <bool kStreams>
HWY_INLINE void transpose_tile(const TransposeJob& job, const float* from, float* to) {
  HWY_ALIGN float transposed[kTileColumns * kTileRows];
  for (int64_t r = 0; r < kTileRows; r += 4) {
    // Rows are far apart, so the CPU does not prefetch a row's next cache line itself.
    for (int64_t k = r; k < r + 4; ++k) {
      __builtin_prefetch(from + k * job.from_stride + 2 * kTileColumns);
    }
    for (int64_t c = 0; c < kTileColumns; c += 4) {
      transpose_4x4(from + r * job.from_stride + c, job.from_stride,
                    transposed + c * kTileRows + r);
    }
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t c = 0; c < kTileColumns; ++c) {
    for (int64_t r = 0; r < kTileRows; r += lanes) {
      const FloatVec v = hn::Load(kFloats, transposed + c * kTileRows + r);
      float* const place = to + c * job.to_stride + r;
      if constexpr (kStreams) {
        hn::Stream(v, kFloats, place);
      } else {
        hn::StoreU(v, kFloats, place);
      }
    }
  }
}

template <bool kStreams>
void transpose(const TransposeJob& job, int64_t begin, int64_t end) {
  const auto one_by_one = [&](int64_t r_end, int64_t r, int64_t c_begin) {
    for (; r < r_end; ++r) {
      for (int64_t c = c_begin; c < job.columns; ++c) {
        job.to[c * job.to_stride + r] = job.from[r * job.from_stride + c];
      }
    }
  };
  int64_t r = begin;
  const int64_t whole_columns = job.columns / kTileColumns * kTileColumns;
  for (; r + kTileRows <= end; r += kTileRows) {
    for (int64_t c = 0; c < whole_columns; c += kTileColumns) {
      transpose_tile<kStreams>(job, job.from + r * job.from_stride + c,
                               job.to + c * job.to_stride + r);
    }
    one_by_one(r + kTileRows, r, whole_columns);
  }
  one_by_one(end, r, 0);
  if (kStreams) hwy::FlushStream();
}

// Larger results would be evicted from the caches before they are read.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

void transpose_task(const TransposeJob& job, int64_t begin, int64_t end) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(job.to + begin) % (4 * hn::Lanes(kFloats)) == 0 &&
      job.to_stride % lanes == 0;
  const int64_t bytes = 4 * job.to_stride * job.columns;
  is_aligned&& bytes > kStreamedBytes ? transpose<true>(job, begin, end)
                                      : transpose<false>(job, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(transpose_task);

void transpose_rows(const TransposeJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(transpose_task)(job, begin, end);
}
}  // namespace cleave::inline kernels
#endif
