#include "cleave/kernels/cpu/int8_loops.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
// GCC 12 warns of operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave {
namespace {

/// Columns of the matrix that stay in the second-level cache while x goes by.
constexpr int64_t kColumnsAtOnce = 64;
/// Up to so many rows of x the matrix is read once, in order.
constexpr size_t kFewRows = 8;

/// The 128s that were added to x count once for every number of the matrix's row.
inline void finish(const Int8Job& job, int64_t row, int64_t column, int32_t sum) {
  const int32_t own = sum - 128 * job.weight_sum[column];
  const float scale = job.weight_scale[column] * job.x_scale[row];
  const float y = static_cast<float>(own) * scale;
  job.out[row * job.columns + column] = job.bias != nullptr ? y + job.bias[column] : y;
}

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

/// Adds to each lane the products of four bytes with four signed ones. As an intrinsic GCC 12
/// copies the sums to and fro, at half the speed.
CLEAVE_VNNI inline void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

/// What finish does, for four columns.
CLEAVE_VNNI inline void finish_four(const Int8Job& job, int64_t row, int64_t column, __m128i sums) {
  const __m128i added =
      _mm_slli_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(job.weight_sum + column)), 7);
  const __m128 scale =
      _mm_mul_ps(_mm_loadu_ps(job.weight_scale + column), _mm_set1_ps(job.x_scale[row]));
  __m128 y = _mm_mul_ps(_mm_cvtepi32_ps(_mm_sub_epi32(sums, added)), scale);
  if (job.bias != nullptr) y = _mm_add_ps(y, _mm_loadu_ps(job.bias + column));
  _mm_storeu_ps(job.out + row * job.columns + column, y);
}

/// kR rows of x with kN rows of the matrix: kR kN sums of 16 lanes each. Unless its loops are
/// unrolled early, GCC 12 keeps the sums in memory.
template <size_t kR, size_t kN>
CLEAVE_VNNI inline void vnni_tile(const Int8Job& job, int64_t row, int64_t column) {
  const auto width = static_cast<size_t>(job.width);
  const uint8_t* x = job.x + row * job.width;
  const int8_t* weight = job.weight + column * job.width;
  __m512i sum[kR][kN];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) sum[r][n] = _mm512_setzero_si512();
  }
  for (size_t k = 0; k < width; k += size_t{kInt8Block}) {
    __m512i w[kN];
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) w[n] = _mm512_loadu_si512(weight + n * width + k);
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      const __m512i bytes = _mm512_loadu_si512(x + r * width + k);
#pragma GCC unroll 8
      for (size_t n = 0; n < kN; ++n) add_products(sum[r][n], bytes, w[n]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    const int64_t to = row + static_cast<int64_t>(r);
    if constexpr (kN == 4) {
      finish_four(job, to, column, sums_of(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
    } else {
      finish(job, to, column, _mm512_reduce_add_epi32(sum[r][0]));
    }
  }
}

template <size_t kR>
CLEAVE_VNNI void vnni_rows(const Int8Job& job, int64_t row, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) vnni_tile<kR, 4>(job, row, column);
  for (; column < end; ++column) vnni_tile<kR, 1>(job, row, column);
}

/// What is fetched ahead of what is read: the processor foresees no more than a page.
constexpr int64_t kAheadBytes = 4096;

/// sum[r] = x[r] . w for kR rows of x: w [width] is read once, from its beginning to its end, which
/// memory serves faster than several rows of the matrix side by side.
template <size_t kR>
CLEAVE_VNNI inline void vnni_dot(const uint8_t* x, const int8_t* w, int64_t width, __m512i* sum) {
  constexpr size_t kChains = kR <= 2 ? 4 : 2;  // sums beside each other, so that none is waited for
  __m512i chain[kR][kChains];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kChains; ++c) chain[r][c] = _mm512_setzero_si512();
  }
  constexpr auto kStep = int64_t{kChains} * kInt8Block;
  int64_t k = 0;
  for (; k + kStep <= width; k += kStep) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kChains; ++c) {
      const int64_t at = k + static_cast<int64_t>(c) * kInt8Block;
      _mm_prefetch(w + at + kAheadBytes, _MM_HINT_T0);
      const __m512i weights = _mm512_loadu_si512(w + at);
#pragma GCC unroll 8
      for (size_t r = 0; r < kR; ++r) {
        const uint8_t* row = x + static_cast<int64_t>(r) * width;
        add_products(chain[r][c], _mm512_loadu_si512(row + at), weights);
      }
    }
  }
  for (; k < width; k += kInt8Block) {
    const __m512i weights = _mm512_loadu_si512(w + k);
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      const uint8_t* row = x + static_cast<int64_t>(r) * width;
      add_products(chain[r][0], _mm512_loadu_si512(row + k), weights);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    sum[r] = _mm512_add_epi32(chain[r][0], chain[r][1]);
    if constexpr (kChains == 4) {
      sum[r] = _mm512_add_epi32(sum[r], _mm512_add_epi32(chain[r][2], chain[r][3]));
    }
  }
}

/// Columns of all kR rows, as few as decoding has.
template <size_t kR = 1>
CLEAVE_VNNI void vnni_few_rows(const Int8Job& job, int64_t begin, int64_t end) {
  if (job.rows != int64_t{kR}) {
    if constexpr (kR < kFewRows) return vnni_few_rows<kR + 1>(job, begin, end);
    return;
  }
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) {
    __m512i sum[4][kR];
#pragma GCC unroll 8
    for (int64_t n = 0; n < 4; ++n) {
      vnni_dot<kR>(job.x, job.weight + (column + n) * job.width, job.width, sum[n]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      finish_four(job, static_cast<int64_t>(r), column,
                  sums_of(sum[0][r], sum[1][r], sum[2][r], sum[3][r]));
    }
  }
  for (; column < end; ++column) {
    __m512i sum[kR];
    vnni_dot<kR>(job.x, job.weight + column * job.width, job.width, sum);
    for (size_t r = 0; r < kR; ++r) {
      finish(job, static_cast<int64_t>(r), column, _mm512_reduce_add_epi32(sum[r]));
    }
  }
}

CLEAVE_VNNI void vnni_products(const Int8Job& job, int64_t begin, int64_t end) {
  if (job.rows <= int64_t{kFewRows}) return vnni_few_rows(job, begin, end);
  for (; begin < end; begin += kColumnsAtOnce) {
    const int64_t last = std::min(end, begin + kColumnsAtOnce);
    int64_t row = 0;
    for (; row + 6 <= job.rows; row += 6) vnni_rows<6>(job, row, begin, last);
    for (; row + 2 <= job.rows; row += 2) vnni_rows<2>(job, row, begin, last);
    for (; row < job.rows; ++row) vnni_rows<1>(job, row, begin, last);
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
      finish(job, row, column, sum);
    }
  }
}

void int8_products(const Int8Job& job, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_vnni()) return vnni_products(job, begin, end);
#endif
  int8_products_portable(job, begin, end);
}

float largest_of_row(const float* x, int64_t width) {
  // Of numbers without a sign the bits are in the numbers' order, and NaN is above all.
  uint32_t most = 0;
  for (int64_t i = 0; i < width; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, x + i, sizeof bits);
    most = std::max(most, bits & 0x7FFFFFFFU);
  }
  float value = 0;
  std::memcpy(&value, &most, sizeof value);
  return value;
}

void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to) {
  // Adding 1.5 2^23 leaves the nearest integer, ties to even, in the lowest bits.
  constexpr float kMagic = 12582912.0F;
  for (int64_t i = 0; i < width; ++i) {
    const float value = std::clamp(x[i] * factor, -127.0F, 127.0F) + kMagic;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    to[i] = static_cast<uint8_t>(bits + 128);
  }
  std::fill(to + width, to + padded, uint8_t{128});
}

}  // namespace cleave
