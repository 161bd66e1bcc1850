#include "cleave/kernels/cpu/int8_loops.h"

#include <algorithm>
#include <cstring>

#include "cleave/kernels/cpu/isa.h"
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

/// Writes the result of one row and column. `sum` wraps around like the CPU's; 128 times the
/// column's sum is subtracted from it, because x has 128 added.
inline void finish(const Int8Job& job, int64_t row, int64_t column, uint32_t sum) {
  const auto own = static_cast<int32_t>(sum - 128 * static_cast<uint32_t>(job.weight_sum[column]));
  const float scale = job.weight_scale[column] * job.x_scale[row];
  const float y = static_cast<float>(own) * scale;
  job.out[row * job.columns + column] = job.bias != nullptr ? y + job.bias[column] : y;
}

void portable_products(const Int8Job& job, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {
    const Panel panel(job, index);
    const int64_t columns = std::min(panel.width, job.columns - panel.first);
    for (int64_t row = 0; row < job.rows; ++row) {
      const uint8_t* x = job.x + row * job.width;
      for (int64_t c = 0; c < columns; ++c) {
        uint32_t sum = 0;
        for (int64_t k = 0; k < job.width; ++k) {
          const int64_t at = (k / kInt8Group * panel.width + c) * kInt8Group + k % kInt8Group;
          sum += static_cast<uint32_t>(int32_t{x[k]} * int32_t{panel.weight[at]});
        }
        finish(job, row, panel.first + c, sum);
      }
    }
  }
}

/// Rows whose sums fit in registers.
constexpr size_t kTileRows = 6;

#if defined(__x86_64__)
#define CLEAVE_AVX2 __attribute__((target("avx2")))
#define CLEAVE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

/// kR rows of x times 8 columns of a panel, from its column `first` on. Bytes are widened to 16
/// bits, since sums of two products of bytes do not fit into 16.
template <size_t kR>
CLEAVE_AVX2 void avx2_tile(const Int8Job& job, const Panel& panel, int64_t row, int64_t first) {
  const uint8_t* x = job.x + row * job.width;
  const int8_t* w = panel.weight + kInt8Group * first;
  __m256i low[kR], high[kR];  // two sums for each of four columns
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r) low[r] = high[r] = _mm256_setzero_si256();
  for (int64_t k = 0; k < job.width; k += kInt8Group, w += kInt8Group * panel.width) {
    _mm_prefetch(w + kFetchAheadBytes, _MM_HINT_T0);
    const auto* from = reinterpret_cast<const __m128i*>(w);
    const __m256i four = _mm256_cvtepi8_epi16(_mm_loadu_si128(from));
    const __m256i next = _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1));
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) {
      int32_t group = 0;
      std::memcpy(&group, x + static_cast<int64_t>(r) * job.width + k, sizeof group);
      const __m256i inputs = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(group)));
      low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(four, inputs));
      high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(next, inputs));
    }
  }
  const int64_t column = panel.first + first;
  const int64_t columns = std::min<int64_t>(8, job.columns - column);
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r) {
    uint32_t sums[8];
    const __m256i mixed = _mm256_hadd_epi32(low[r], high[r]);  // columns 0, 1, 4, 5, 2, 3, 6, 7
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), _mm256_permute4x64_epi64(mixed, 0xD8));
    for (int64_t c = 0; c < columns; ++c) {
      finish(job, row + static_cast<int64_t>(r), column + c, sums[c]);
    }
  }
}

template <size_t kR>
void avx2_rows(const Int8Job& job, const Panel& panel, int64_t row) {
  constexpr auto kRows = static_cast<int64_t>(kR);
  for (; row + kRows <= job.rows; row += kRows) {
    for (int64_t c = 0; c < panel.width; c += 8) avx2_tile<kR>(job, panel, row, c);
  }
  if constexpr (kR > 1) avx2_rows<kR - 1>(job, panel, row);
}

void avx2_products(const Int8Job& job, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) avx2_rows<4>(job, Panel(job, index), 0);
}

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

#endif

Int8Loops best_loops(int64_t rows) {
  // Products of few rows wait for memory, so that tiles would gain nothing.
  const bool is_few = rows <= int64_t{kTileRows};
  if (!is_few && has_int8_loops(Int8Loops::kAmx)) return Int8Loops::kAmx;
  if (has_int8_loops(Int8Loops::kVnni)) return Int8Loops::kVnni;
  return has_int8_loops(Int8Loops::kAvx2) ? Int8Loops::kAvx2 : Int8Loops::kPortable;
}

}  // namespace

bool has_int8_loops(Int8Loops loops) {
#if defined(__x86_64__)
  if (loops == Int8Loops::kAmx) return has_int8_loops(Int8Loops::kVnni) && has_tiles();
  if (loops == Int8Loops::kVnni) return has_isa(Isa::kAvx512Vnni);
  if (loops == Int8Loops::kAvx2) return has_isa(Isa::kAvx2);
#endif
  return loops == Int8Loops::kPortable;
}

void int8_products(const Int8Job& job, int64_t begin, int64_t end) {
  int8_products(job, begin, end, best_loops(job.rows));
}

void int8_products(const Int8Job& job, int64_t begin, int64_t end, Int8Loops loops) {
#if defined(__x86_64__)
  if (loops == Int8Loops::kAmx) return tile_products(job, begin, end);
  if (loops == Int8Loops::kVnni) return vnni_products(job, begin, end);
  if (loops == Int8Loops::kAvx2) return avx2_products(job, begin, end);
#endif
  portable_products(job, begin, end);
}

}  // namespace cleave::inline kernels
