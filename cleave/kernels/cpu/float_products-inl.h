// Included once per instruction set by hwy/foreach_target.h.
#if defined(CLEAVE_KERNELS_FLOAT_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_FLOAT_PRODUCTS_INL_H
#undef CLEAVE_KERNELS_FLOAT_PRODUCTS_INL_H
#else
/// Toggled include guard: each instruction set includes the file once.
#define CLEAVE_KERNELS_FLOAT_PRODUCTS_INL_H
#endif

#include <algorithm>

#include "cleave/kernels/cpu/float_products.h"
#include "hwy/cache_control.h"
// After the others: it is compiled once per instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

/// Compiled for one instruction set from here.
HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

// Tile of C in registers: 6 x 4 sums, 4 vectors of B and one of A fit in 32 registers.
inline constexpr int64_t kTileRows = 6;
inline constexpr int64_t kTileVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

/// kM rows and kN vectors of C from row m and column n on.
template <size_t kM, size_t kN>
HWY_INLINE void tile(const FloatProduct& p, int64_t m, int64_t n) {
  const size_t lanes = hn::Lanes(kFloats);
  const auto row = static_cast<size_t>(p.ldc);
  const float* a = p.a.data + m * p.a.row;
  const float* b = p.b + n;
  float* c = p.c + m * p.ldc + n;
  FloatVec sum[kM][kN];
  for (size_t i = 0; i < kM; ++i) {
    for (size_t j = 0; j < kN; ++j) {
      sum[i][j] = p.adds ? load(c + i * row + j * lanes) : hn::Zero(kFloats);
    }
  }
  for (int64_t k = 0; k < p.depth; ++k) {
    FloatVec right[kN];
    for (size_t j = 0; j < kN; ++j) {
      hwy::Prefetch(b + p.ahead + j * lanes);
      right[j] = load(b + j * lanes);
    }
    for (size_t i = 0; i < kM; ++i) {
      const FloatVec left = hn::Set(kFloats, a[static_cast<int64_t>(i) * p.a.row]);
      for (size_t j = 0; j < kN; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    a += p.a.col;
    b += p.ldb;
  }
  for (size_t i = 0; i < kM; ++i) {
    for (size_t j = 0; j < kN; ++j) store(sum[i][j], c + i * row + j * lanes);
  }
}

template <size_t kM>
HWY_INLINE void tile_of_rows(const FloatProduct& p, int64_t m, int64_t n, int64_t vectors) {
  switch (vectors) {
    case 4:
      return tile<kM, 4>(p, m, n);
    case 3:
      return tile<kM, 3>(p, m, n);
    case 2:
      return tile<kM, 2>(p, m, n);
    default:
      return tile<kM, 1>(p, m, n);
  }
}

/// Implements multiply_float_rows of float_products.h.
inline void multiply_floats(const FloatProduct& p) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t n = 0; n < p.columns; n += kTileVectors * lanes) {
    const int64_t vectors = std::min(kTileVectors, (p.columns - n) / lanes);
    int64_t m = 0;
    for (; m + kTileRows <= p.rows; m += kTileRows) {
      tile_of_rows<size_t{kTileRows}>(p, m, n, vectors);
    }
    for (; m + 3 <= p.rows; m += 3) tile_of_rows<3>(p, m, n, vectors);
    for (; m + 2 <= p.rows; m += 2) tile_of_rows<2>(p, m, n, vectors);
    for (; m < p.rows; ++m) tile_of_rows<1>(p, m, n, vectors);
  }
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
/// Ends HWY_BEFORE_NAMESPACE.
HWY_AFTER_NAMESPACE();
#endif
