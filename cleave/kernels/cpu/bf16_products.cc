#include "cleave/kernels/cpu/bf16_products.h"

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/isa.h"
#include "cleave/kernels/cpu/kernel_job.h"
#include "cleave/kernels/cpu/tiles.h"

#if defined(__x86_64__)
// GCC 12 warns about operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave::inline kernels {

#if defined(__x86_64__)
#define CLEAVE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace {

constexpr size_t kStep = 32;  // bf16 numbers per vector

/// Horizontal sums of four vectors.
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

/// Adds to each lane the dot product of two pairs. Not an intrinsic, because GCC 12 copies the
/// sums.
CLEAVE_BF16 inline void add_products(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

/// sum[r] = x[r] . w for all kR rows. w [in] is read once and sequentially, which is faster than
/// reading several rows of the matrix in parallel.
template <size_t kR>
CLEAVE_BF16 inline void dot(const uint16_t* x, const uint16_t* w, size_t in, __m512* sum) {
  constexpr size_t kChains = kR <= 2 ? 4 : 2;  // independent sums, to hide latency
  __m512 chain[kR][kChains];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kChains; ++c) chain[r][c] = _mm512_setzero_ps();
  }
  size_t k = 0;
  for (; k + kChains * kStep <= in; k += kChains * kStep) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kChains; ++c) {
      const uint16_t* from = w + k + c * kStep;
      _mm_prefetch(reinterpret_cast<const char*>(from) + kFetchAheadBytes, _MM_HINT_T0);
      const __m512i weights = _mm512_loadu_si512(from);
#pragma GCC unroll 8
      for (size_t r = 0; r < kR; ++r) {
        add_products(chain[r][c], _mm512_loadu_si512(x + r * in + k + c * kStep), weights);
      }
    }
  }
  for (; k < in; k += kStep) {
    const __mmask32 inside = in - k >= kStep ? ~__mmask32{0} : (__mmask32{1} << (in - k)) - 1;
    const __m512i weights = _mm512_maskz_loadu_epi16(inside, w + k);
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      add_products(chain[r][0], _mm512_maskz_loadu_epi16(inside, x + r * in + k), weights);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    sum[r] = _mm512_add_ps(chain[r][0], chain[r][1]);
    if constexpr (kChains == 4) {
      sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(chain[r][2], chain[r][3]));
    }
  }
}

/// kN columns of all kR rows.
template <size_t kR, size_t kN>
CLEAVE_BF16 inline void columns(const FewRowsJob& job, const uint16_t* x, int64_t column) {
  const auto in = static_cast<size_t>(job.in);
  const auto* weight = static_cast<const uint16_t*>(job.weight) + static_cast<size_t>(column) * in;
  constexpr size_t kFours = (kR * kN + 3) / 4 * 4;  // a multiple of four for sums_of
  __m512 sum[kFours];
#pragma GCC unroll 8
  for (size_t n = 0; n < kN; ++n) dot<kR>(x, weight + n * in, in, sum + n * kR);
#pragma GCC unroll 8
  for (size_t i = kR * kN; i < kFours; ++i) sum[i] = _mm512_setzero_ps();
  float total[kFours];
#pragma GCC unroll 8
  for (size_t i = 0; i < kFours; i += 4) {
    _mm_storeu_ps(total + i, sums_of(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
  }
  for (size_t i = 0; i < kR * kN; ++i) {
    job.y[static_cast<int64_t>(i % kR) * job.y_stride + column + static_cast<int64_t>(i / kR)] =
        total[i];
  }
}

template <size_t kR = 1>
CLEAVE_BF16 void range(const FewRowsJob& job, const uint16_t* x, int64_t begin, int64_t end) {
  if (job.rows == int64_t{kR}) {
    constexpr int64_t kN = kR == 1 ? 4 : kR == 2 ? 2 : 1;
    int64_t column = begin;
    for (; column + kN <= end; column += kN) columns<kR, size_t{kN}>(job, x, column);
    for (; column < end; ++column) columns<kR, 1>(job, x, column);
  } else if constexpr (kR < kMaxFewRows) {
    range<kR + 1>(job, x, begin, end);
  }
}

/// kM rows and kN vectors of C from row m and column n on. Prefetches kLines cache lines per pair,
/// from `next` on.
template <size_t kM, size_t kN, size_t kLines>
CLEAVE_BF16 inline void pair_tile(const PairProduct& p, int64_t m, int64_t n, const char* next) {
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
    for (size_t j = 0; j < kLines; ++j) _mm_prefetch(next + 64 * j, _MM_HINT_T0);
    next += 64 * kLines;
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

/// A tile that also prefetches its part of `p.next`.
template <size_t kM, size_t kN>
CLEAVE_BF16 void fetching_tile(const PairProduct& p, int64_t m, int64_t n) {
  const auto* next = reinterpret_cast<const char*>(p.next);
  const int64_t fetched = m / kPairRows * p.pairs;  // lines, by the tiles above, one per pair
  if (fetched >= p.next_lines) return pair_tile<kM, kN, 0>(p, m, n, next);
  if (p.rows <= kPairRows) return pair_tile<kM, kN, kN>(p, m, n, next);
  pair_tile<kM, kN, 1>(p, m, n, next + 64 * fetched);
}

/// 6 x 4 sums, 4 vectors of B and one of A fit in 32 registers.
template <size_t kN>
CLEAVE_BF16 void pair_columns(const PairProduct& p, int64_t n) {
  int64_t m = 0;
  for (; m + kPairRows <= p.rows; m += kPairRows) fetching_tile<size_t{kPairRows}, kN>(p, m, n);
  switch (p.rows - m) {
    case 5:
      return fetching_tile<5, kN>(p, m, n);
    case 4:
      return fetching_tile<4, kN>(p, m, n);
    case 3:
      return fetching_tile<3, kN>(p, m, n);
    case 2:
      return fetching_tile<2, kN>(p, m, n);
    case 1:
      return fetching_tile<1, kN>(p, m, n);
    default:
      return;
  }
}

CLEAVE_BF16 void multiply(const PairProduct& p) {
  int64_t n = 0;
  for (; n + 64 <= p.columns; n += 64) pair_columns<4>(p, n);
  for (; n + 32 <= p.columns; n += 32) pair_columns<2>(p, n);
  for (; n < p.columns; n += 16) pair_columns<1>(p, n);
}

}  // namespace

bool has_bf16_products() {
  return has_isa(Isa::kAvx512Bf16);
}

void bf16_rows_range(const FewRowsJob& job, const void* x, int64_t begin, int64_t end) {
  range(job, static_cast<const uint16_t*>(x), begin, end);
}

void multiply_pairs(const PairProduct& product) {
  // For any number of rows, so that a sequence's sums do not depend on the batch.
  if (product.a_pair != 1 || !has_tiles()) return multiply(product);
  multiply_bf16_tiles({.rows = product.rows,
                       .columns = product.columns,
                       .words = product.pairs,
                       .a = product.a,
                       .a_row = product.a_row,
                       .b = product.b,
                       .ldb = product.ldb,
                       .c = product.c,
                       .ldc = product.ldc,
                       .adds = product.adds,
                       .next = product.next,
                       .next_lines = product.next_lines});
}
#else
bool has_bf16_products() {
  return false;
}

void bf16_rows_range(const FewRowsJob&, const void*, int64_t, int64_t) {
  throw Error(Code::kBug, "bf16_rows_range on a CPU without bf16 products");
}

void multiply_pairs(const PairProduct&) {
  throw Error(Code::kBug, "multiply_pairs on a CPU without bf16 products");
}
#endif

}  // namespace cleave::inline kernels
