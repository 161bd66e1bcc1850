#include "cleave/kernels/cpu/bf16_products.h"

#include <algorithm>

#include "cleave/base/error.h"

#if defined(__x86_64__)
// GCC 12 warns of operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave {

#if defined(__x86_64__)
#define CLEAVE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace {

constexpr size_t kMaxRows = 8;
constexpr size_t kStep = 32;  // bf16 numbers of a vector

/// The sums of four vectors' lanes.
CLEAVE_BF16 inline __m128 sums_of(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 quarters = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  return _mm_add_ps(
      _mm_add_ps(_mm512_extractf32x4_ps(quarters, 0), _mm512_extractf32x4_ps(quarters, 1)),
      _mm_add_ps(_mm512_extractf32x4_ps(quarters, 2), _mm512_extractf32x4_ps(quarters, 3)));
}

/// Adds to each lane the products of two pairs. Not as an intrinsic: GCC 12 copies the sums.
CLEAVE_BF16 inline void add_products(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

/// kN columns of all kR rows.
template <size_t kR, size_t kN>
CLEAVE_BF16 inline void tile(const FewRowsJob& job, const uint16_t* x, int64_t column) {
  const auto in = static_cast<size_t>(job.in);
  const auto* weight = static_cast<const uint16_t*>(job.weight) + static_cast<size_t>(column) * in;
  constexpr size_t kFours = (kR + 3) / 4 * 4;  // rows that sums_of takes
  __m512 sum[kFours][kN];
#pragma GCC unroll 8
  for (size_t r = 0; r < kFours; ++r) {
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) sum[r][n] = _mm512_setzero_ps();
  }
  for (size_t k = 0; k < in; k += kStep) {
    const __mmask32 inside = in - k >= kStep ? ~__mmask32{0} : (__mmask32{1} << (in - k)) - 1;
    __m512i w[kN];
#pragma GCC unroll 8
    for (size_t n = 0; n < kN; ++n) {
      w[n] = _mm512_maskz_loadu_epi16(inside, weight + n * in + k);
      // The rows that come next: the processor does not foresee them from page to page.
      _mm_prefetch(reinterpret_cast<const char*>(weight + (kN + n) * in + k), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      const __m512i row = _mm512_maskz_loadu_epi16(inside, x + r * in + k);
#pragma GCC unroll 8
      for (size_t n = 0; n < kN; ++n) add_products(sum[r][n], row, w[n]);
    }
  }
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) {
    float* const y = job.y + column + static_cast<int64_t>(n);
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; r += 4) {
      float four[4];
      _mm_storeu_ps(four, sums_of(sum[r][n], sum[r + 1][n], sum[r + 2][n], sum[r + 3][n]));
      for (size_t i = r; i < std::min(r + 4, kR); ++i) {
        y[static_cast<int64_t>(i) * job.out] = four[i - r];
      }
    }
  }
}

template <size_t kR = 1>
CLEAVE_BF16 void range(const FewRowsJob& job, const uint16_t* x, int64_t begin, int64_t end) {
  if (job.rows == int64_t{kR}) {
    constexpr int64_t kN = kR <= 4 ? 4 : 3;  // as many sums as fit the registers
    int64_t column = begin;
    for (; column + kN <= end; column += kN) tile<kR, size_t{kN}>(job, x, column);
    for (; column < end; ++column) tile<kR, 1>(job, x, column);
  } else if constexpr (kR < kMaxRows) {
    range<kR + 1>(job, x, begin, end);
  }
}

/// kM rows and kN vectors of C, from its row m and column n on.
template <size_t kM, size_t kN>
CLEAVE_BF16 inline void pair_tile(const PairProduct& p, int64_t m, int64_t n) {
  const uint32_t* a = p.a + m * p.a_row;
  const uint32_t* b = p.b + n;
  float* const c = p.c + m * p.ldc + n;
  __m512 sum[kM][kN];
#pragma GCC unroll 8
  for (size_t i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) {
      sum[i][j] = p.adds ? _mm512_loadu_ps(c + static_cast<int64_t>(i) * p.ldc + 16 * j)
                         : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < p.pairs; ++k) {
    __m512i right[kN];
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) right[j] = _mm512_loadu_si512(b + 16 * j);
#pragma GCC unroll 8
    for (size_t i = 0; i < kM; ++i) {
      const __m512i left =
          _mm512_set1_epi32(static_cast<int32_t>(a[static_cast<int64_t>(i) * p.a_row]));
#pragma GCC unroll 8
      for (size_t j = 0; j < kN; ++j) add_products(sum[i][j], left, right[j]);
    }
    a += p.a_pair;
    b += p.ldb;
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kN; ++j) {
      _mm512_storeu_ps(c + static_cast<int64_t>(i) * p.ldc + 16 * j, sum[i][j]);
    }
  }
}

/// As many rows as fit the registers at once: 6 x 4 sums, 4 vectors of B and one of A.
template <size_t kN>
CLEAVE_BF16 void pair_columns(const PairProduct& p, int64_t n) {
  int64_t m = 0;
  for (; m + 6 <= p.rows; m += 6) pair_tile<6, kN>(p, m, n);
  for (; m + 2 <= p.rows; m += 2) pair_tile<2, kN>(p, m, n);
  for (; m < p.rows; ++m) pair_tile<1, kN>(p, m, n);
}

CLEAVE_BF16 void multiply(const PairProduct& p) {
  int64_t n = 0;
  for (; n + 64 <= p.columns; n += 64) pair_columns<4>(p, n);
  for (; n + 32 <= p.columns; n += 32) pair_columns<2>(p, n);
  for (; n < p.columns; n += 16) pair_columns<1>(p, n);
}

}  // namespace

bool has_bf16_products() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

void bf16_rows_range(const FewRowsJob& job, const void* x, int64_t begin, int64_t end) {
  range(job, static_cast<const uint16_t*>(x), begin, end);
}

void multiply_pairs(const PairProduct& product) {
  multiply(product);
}
#else
bool has_bf16_products() {
  return false;
}

void bf16_rows_range(const FewRowsJob&, const void*, int64_t, int64_t) {
  throw Error(Code::kBug, "bf16_rows_range on a processor without bf16 products");
}

void multiply_pairs(const PairProduct&) {
  throw Error(Code::kBug, "multiply_pairs on a processor without bf16 products");
}
#endif

}  // namespace cleave
