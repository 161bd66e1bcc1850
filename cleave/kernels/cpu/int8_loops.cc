#include "cleave/kernels/cpu/int8_loops.h"

#include <algorithm>
#include <cmath>

#if defined(__x86_64__)
// GCC 12 warns of operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave {
namespace {

/// Rows of x whose bytes stay in the second-level cache while the matrix goes by.
constexpr int64_t kRowsAtOnce = 96;

#if defined(__x86_64__)
#define CLEAVE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

/// The sums of four vectors' lanes.
CLEAVE_VNNI inline __m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i quarters =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  return _mm_add_epi32(
      _mm_add_epi32(_mm512_extracti32x4_epi32(quarters, 0), _mm512_extracti32x4_epi32(quarters, 1)),
      _mm_add_epi32(_mm512_extracti32x4_epi32(quarters, 2),
                    _mm512_extracti32x4_epi32(quarters, 3)));
}

/// kR rows of x with kN rows of the matrix: kR kN sums of 16 lanes each.
template <size_t kR, size_t kN>
CLEAVE_VNNI inline void vnni_tile(const Int8Job& job, int64_t row, int64_t column) {
  const auto width = static_cast<size_t>(job.width);
  const uint8_t* x = job.x + row * job.width;
  const int8_t* weight = job.weight + column * job.width;
  __m512i sum[kR][kN];
  for (size_t r = 0; r < kR; ++r) {
    for (size_t n = 0; n < kN; ++n) sum[r][n] = _mm512_setzero_si512();
  }
  for (size_t k = 0; k < width; k += size_t{kInt8Block}) {
    __m512i w[kN];
    for (size_t n = 0; n < kN; ++n) w[n] = _mm512_loadu_si512(weight + n * width + k);
    for (size_t r = 0; r < kR; ++r) {
      const __m512i bytes = _mm512_loadu_si512(x + r * width + k);
      for (size_t n = 0; n < kN; ++n) sum[r][n] = _mm512_dpbusd_epi32(sum[r][n], bytes, w[n]);
    }
  }
  for (size_t r = 0; r < kR; ++r) {
    int32_t* out = job.out + (row + static_cast<int64_t>(r)) * job.columns + column;
    if constexpr (kN == 4) {
      const __m128i sums = sums_of(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), sums);
    } else {
      for (size_t n = 0; n < kN; ++n) out[n] = _mm512_reduce_add_epi32(sum[r][n]);
    }
  }
}

template <size_t kN>
CLEAVE_VNNI void vnni_column(const Int8Job& job, int64_t row, int64_t end, int64_t column) {
  for (; row + 6 <= end; row += 6) vnni_tile<6, kN>(job, row, column);
  for (; row + 2 <= end; row += 2) vnni_tile<2, kN>(job, row, column);
  for (; row < end; ++row) vnni_tile<1, kN>(job, row, column);
}

CLEAVE_VNNI void vnni_products(const Int8Job& job, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < job.rows; row += kRowsAtOnce) {
    const int64_t last = std::min(job.rows, row + kRowsAtOnce);
    int64_t column = begin;
    for (; column + 4 <= end; column += 4) vnni_column<4>(job, row, last, column);
    for (; column < end; ++column) vnni_column<1>(job, row, last, column);
  }
}

bool has_vnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0;
  return has;
}
#endif

}  // namespace

void int8_products_portable(const Int8Job& job, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; ++column) {
    const int8_t* weight = job.weight + column * job.width;
    for (int64_t row = 0; row < job.rows; ++row) {
      const uint8_t* x = job.x + row * job.width;
      int32_t sum = 0;
      for (int64_t k = 0; k < job.width; ++k) sum += int32_t{x[k]} * int32_t{weight[k]};
      job.out[row * job.columns + column] = sum;
    }
  }
}

void int8_products(const Int8Job& job, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_vnni()) return vnni_products(job, begin, end);
#endif
  int8_products_portable(job, begin, end);
}

void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to) {
  for (int64_t i = 0; i < width; ++i) {
    const float value = std::nearbyint(x[i] * factor);
    to[i] = static_cast<uint8_t>(128 + static_cast<int>(std::clamp(value, -127.0F, 127.0F)));
  }
  std::fill(to + width, to + padded, uint8_t{128});
}

}  // namespace cleave
