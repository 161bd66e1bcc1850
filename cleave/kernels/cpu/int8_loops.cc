#include "cleave/kernels/cpu/int8_loops.h"

#include <algorithm>
#include <cstring>

#include "cleave/kernels/cpu/kernel_job.h"
#include "cleave/kernels/cpu/reorder.h"
#include "cleave/kernels/cpu/tiles.h"

#if defined(__x86_64__)
// GCC 12 warns about operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave::inline kernels {
namespace {

int64_t padded_columns(const Int8Job& job) {
  return (job.columns + kInt8Columns - 1) / kInt8Columns * kInt8Columns;
}

/// One panel of the matrix.
struct Panel {
  Panel(const Int8Job& job, int64_t index)
      : first(index * kPanel),
        width(std::min(kPanel, padded_columns(job) - first)),
        weight(job.weight + first * job.width) {}
  int64_t first;  // column
  int64_t width;
  const int8_t* weight;
};

#if defined(__x86_64__)
#define CLEAVE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

/// Adds to each lane the dot product of four unsigned and four signed bytes. Not an intrinsic,
/// because GCC 12 then copies the sums back and forth, at half the speed.
CLEAVE_VNNI inline void add_products(__m512i& sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
}

/// Writes the result of one row and 16 columns. Subtracts 128 times the column's sum, because x has
/// 128 added.
CLEAVE_VNNI inline void vnni_finish(const Int8Job& job, int64_t row, int64_t column, __m512i sums) {
  const int64_t left = job.columns - column;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
  const __m512i added = _mm512_slli_epi32(_mm512_loadu_si512(job.weight_sum + column), 7);
  const __m512 scale =
      _mm512_mul_ps(_mm512_loadu_ps(job.weight_scale + column), _mm512_set1_ps(job.x_scale[row]));
  __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added)), scale);
  if (job.bias != nullptr) {
    y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, job.bias + column));
  }
  _mm512_mask_storeu_ps(job.out + row * job.columns + column, mask, y);
}

/// kR rows of x times the 16 kV columns of a panel. Without the unroll pragmas, GCC 12 keeps the
/// sums in memory.
template <size_t kR, size_t kV>
CLEAVE_VNNI inline void vnni_tile(const Int8Job& job, const Panel& panel, int64_t row) {
  const uint8_t* x = job.x + row * job.width;
  const int8_t* w = panel.weight;
  __m512i sum[kR][kV];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kV; ++v) sum[r][v] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < job.width; k += kInt8Group, w += 64 * kV) {
    __m512i weights[kV];
#pragma GCC unroll 8
    for (size_t v = 0; v < kV; ++v) {
      _mm_prefetch(w + kFetchAheadBytes + 64 * v, _MM_HINT_T0);
      weights[v] = _mm512_loadu_si512(w + 64 * v);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kR; ++r) {
      int32_t group = 0;
      std::memcpy(&group, x + static_cast<int64_t>(r) * job.width + k, sizeof group);
      const __m512i bytes = _mm512_set1_epi32(group);
#pragma GCC unroll 8
      for (size_t v = 0; v < kV; ++v) add_products(sum[r][v], bytes, weights[v]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (size_t v = 0; v < kV; ++v) {
      vnni_finish(job, row + static_cast<int64_t>(r), panel.first + static_cast<int64_t>(16 * v),
                  sum[r][v]);
    }
  }
}

/// Rows whose sums fit in registers.
constexpr size_t kTileRows = 6;

template <size_t kV, size_t kR = kTileRows>
CLEAVE_VNNI void vnni_rows(const Int8Job& job, const Panel& panel, int64_t row) {
  constexpr auto kRows = static_cast<int64_t>(kR);
  for (; row + kRows <= job.rows; row += kRows) vnni_tile<kR, kV>(job, panel, row);
  if constexpr (kR > 1) vnni_rows<kV, kR - 1>(job, panel, row);
}

CLEAVE_VNNI void vnni_products(const Int8Job& job, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {
    const Panel panel(job, index);
    if (panel.width == 64) vnni_rows<4>(job, panel, 0);
    if (panel.width == 48) vnni_rows<3>(job, panel, 0);
    if (panel.width == 32) vnni_rows<2>(job, panel, 0);
    if (panel.width == 16) vnni_rows<1>(job, panel, 0);
  }
}

/// Rows per pass over a panel with tiles, so that their sums stay in the L1 cache.
constexpr int64_t kSumRows = 64;

/// As vnni_products, with the same integers.
CLEAVE_VNNI void tile_products(const Int8Job& job, int64_t begin, int64_t end) {
  alignas(64) int32_t sums[kSumRows * kPanel];
  const int64_t words = job.width / kInt8Group;
  for (int64_t index = begin; index < end; ++index) {
    const Panel panel(job, index);
    for (int64_t row = 0; row < job.rows; row += kSumRows) {
      const int64_t rows = std::min(kSumRows, job.rows - row);
      const bool fetches = row == 0 && index + 1 < end;
      multiply_int8_tiles({.rows = rows,
                           .columns = panel.width,
                           .words = words,
                           .a = job.x + row * job.width,
                           .a_row = words,
                           .b = panel.weight,
                           .ldb = panel.width,
                           .c = sums,
                           .ldc = panel.width,
                           .next = panel.weight + panel.width * job.width,
                           .next_lines = fetches ? panel.width * job.width / 64 : 0});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < panel.width; c += 16) {
          vnni_finish(job, row + r, panel.first + c, _mm512_load_si512(sums + r * panel.width + c));
        }
      }
    }
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
  for (int64_t index = begin; index < end; ++index) {
    const Panel panel(job, index);
    const int64_t columns = std::min(panel.width, job.columns - panel.first);
    for (int64_t row = 0; row < job.rows; ++row) {
      const uint8_t* x = job.x + row * job.width;
      for (int64_t c = 0; c < columns; ++c) {
        uint32_t sum = 0;  // wraps around like the CPU's sum
        for (int64_t k = 0; k < job.width; ++k) {
          const int64_t at = (k / kInt8Group * panel.width + c) * kInt8Group + k % kInt8Group;
          sum += static_cast<uint32_t>(int32_t{x[k]} * int32_t{panel.weight[at]});
        }
        const int64_t column = panel.first + c;
        const auto own =
            static_cast<int32_t>(sum - 128 * static_cast<uint32_t>(job.weight_sum[column]));
        const float scale = job.weight_scale[column] * job.x_scale[row];
        const float y = static_cast<float>(own) * scale;
        job.out[row * job.columns + column] = job.bias != nullptr ? y + job.bias[column] : y;
      }
    }
  }
}

void int8_products(const Int8Job& job, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_vnni()) {
    // Products of few rows wait for memory, so that tiles would gain nothing.
    const bool by_tiles = job.rows > int64_t{kTileRows} && has_tiles();
    return by_tiles ? tile_products(job, begin, end) : vnni_products(job, begin, end);
  }
#endif
  int8_products_portable(job, begin, end);
}

}  // namespace cleave::inline kernels
