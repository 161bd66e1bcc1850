#include "cleave/kernels/cpu/int4_loops.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Half.h>

#include "cleave/kernels/cpu/int8_loops.h"
#include "cleave/kernels/cpu/isa.h"
#include "cleave/kernels/cpu/tiles.h"

#if defined(__x86_64__)
// GCC 12 warns about operands that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace cleave::inline kernels {
namespace {

/// Offsets in a block.
constexpr int64_t kWordBytes = 4 * kInt4Panel;
constexpr int64_t kScalesAt = 4 * kWordBytes;
constexpr int64_t kMinsAt = kScalesAt + 2 * kInt4Panel;

/// Blocks of a panel.
const uint8_t* panel_of(const Int4Job& job, int64_t index) {
  return job.weight + index * job.groups * int4_block_bytes(job.has_mins);
}

#if defined(__x86_64__)
#define CLEAVE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define CLEAVE_AVX2 __attribute__((target("avx2,fma,f16c")))

/// Four neighbouring values of a row.
using Four __attribute__((may_alias, aligned(1))) = int32_t;

const Four* fours(const int8_t* values) {
  return reinterpret_cast<const Four*>(values);
}

/// Adds to each lane the dot product of four unsigned bytes and the four values. Not an intrinsic,
/// because GCC 12 then copies the sums.
CLEAVE_VNNI inline void add_products(__m512i& sum, __m512i bytes, const Four* values) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*values));
}

/// The numbers of a group, for 16 outputs: bytes[j] has inputs 4 j to 4 j + 3 of each.
CLEAVE_VNNI inline void unpack(const uint8_t* from, __m512i* bytes) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    const __m512i pairs = _mm512_loadu_si512(from + kWordBytes * j);
    bytes[j] = _mm512_and_si512(pairs, low);
    bytes[j + 4] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low);
  }
}

CLEAVE_VNNI inline __m512 halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// Writes the result of one row and 16 columns.
CLEAVE_VNNI inline void vnni_finish(const Int4Job& job, int64_t row, int64_t column, __m512 y) {
  const int64_t left = job.columns - column;
  if (left <= 0) return;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
  if (job.bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, job.bias + column));
  _mm512_mask_storeu_ps(job.out + row * job.columns + column, mask, y);
}

/// kR rows of x times a panel. Without the unroll pragmas, GCC 12 keeps the sums in memory.
template <size_t kR, bool kHasMins>
CLEAVE_VNNI void vnni_tile(const Int4Job& job, int64_t panel, int64_t row) {
  constexpr int64_t kBytes = int4_block_bytes(kHasMins);
  const uint8_t* block = panel_of(job, panel);
  __m512 sum[kR][2];
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < job.groups; ++g, block += kBytes) {
#pragma GCC unroll 10
    for (int64_t line = 0; line < kBytes / 64; ++line) {
      _mm_prefetch(block + kFetchAheadBytes + 64 * line, _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      __m512i bytes[8];
      unpack(block + 64 * half, bytes);
      const __m512 scale = halves(block + kScalesAt + 32 * half);
#pragma GCC unroll 8
      for (size_t r = 0; r < kR; ++r) {
        const int64_t at = (row + static_cast<int64_t>(r)) * job.groups + g;
        const Four* x = fours(job.x.values + at * kInt4Group);
        __m512i dots = kHasMins ? _mm512_setzero_si512() : _mm512_set1_epi32(job.x.offsets[at]);
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) add_products(dots, bytes[j], x + j);
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(job.x.scales[at]));
        sum[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), factor, sum[r][half]);
        if constexpr (kHasMins) {
          sum[r][half] = _mm512_fnmadd_ps(halves(block + kMinsAt + 32 * half),
                                          _mm512_set1_ps(job.x.totals[at]), sum[r][half]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kR; ++r) {
    vnni_finish(job, row + static_cast<int64_t>(r), panel * kInt4Panel, sum[r][0]);
    vnni_finish(job, row + static_cast<int64_t>(r), panel * kInt4Panel + 16, sum[r][1]);
  }
}

/// Adds a group's dot products to the sums of `rows` rows of x, as vnni_tile does.
template <bool kHasMins>
CLEAVE_VNNI void add_group(const Int4Job& job, const uint8_t* block, int64_t first, int64_t rows,
                           const int32_t* dots, float* sums) {
  const __m512 scale[2] = {halves(block + kScalesAt), halves(block + kScalesAt + 32)};
  __m512 min[2] = {};
  if constexpr (kHasMins) min[0] = halves(block + kMinsAt), min[1] = halves(block + kMinsAt + 32);
  for (int64_t r = 0; r < rows; ++r, dots += kInt4Panel, sums += kInt4Panel) {
    const int64_t at = first + r * job.groups;
    const __m512 x_scale = _mm512_set1_ps(job.x.scales[at]);
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      __m512i dot = _mm512_load_si512(dots + 16 * half);
      if (!kHasMins) dot = _mm512_add_epi32(dot, _mm512_set1_epi32(job.x.offsets[at]));
      __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale[half], x_scale),
                                   _mm512_load_ps(sums + 16 * half));
      if constexpr (kHasMins) {
        sum = _mm512_fnmadd_ps(min[half], _mm512_set1_ps(job.x.totals[at]), sum);
      }
      _mm512_store_ps(sums + 16 * half, sum);
    }
  }
}

/// As vnni_tile, with the same results, for up to GroupTiles::kRows rows.
template <bool kHasMins>
CLEAVE_VNNI void amx_tile(const Int4Job& job, int64_t panel, int64_t row) {
  constexpr int64_t kBytes = int4_block_bytes(kHasMins), kSums = GroupTiles::kRows * kInt4Panel;
  const int64_t rows = std::min(GroupTiles::kRows, job.rows - row);
  const uint8_t* block = panel_of(job, panel);
  alignas(64) float sums[kSums] = {};
  alignas(64) int32_t dots[kSums];
  alignas(64) uint8_t words[kInt4Group * kInt4Panel];
  const GroupTiles tiles(rows);
  for (int64_t g = 0; g < job.groups; ++g, block += kBytes) {
    for (int64_t at = 0; at < kBytes; at += 64) {
      _mm_prefetch(block + kFetchAheadBytes + at, _MM_HINT_T0);
    }
    for (int64_t half = 0; half < 2; ++half) {
      __m512i bytes[8];
      unpack(block + 64 * half, bytes);
#pragma GCC unroll 8
      for (int64_t j = 0; j < 8; ++j) {
        _mm512_store_si512(words + kWordBytes * j + 64 * half, bytes[j]);
      }
    }
    const int64_t first = row * job.groups + g;
    tiles.multiply(job.x.values + first * kInt4Group, job.groups * kInt4Group, words, dots);
    add_group<kHasMins>(job, block, first, rows, dots, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < kInt4Panel; c += 16) {
      vnni_finish(job, row + r, panel * kInt4Panel + c, _mm512_load_ps(sums + r * kInt4Panel + c));
    }
  }
}

CLEAVE_AVX2 inline __m256 halves8(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

/// The dot products of 8 outputs' numbers with a group of x. A lane's sums stay below 2^15: 8 times
/// 2 * 15 * 127.
CLEAVE_AVX2 inline __m256i avx2_dots(const __m256i* bytes, const Four* x) {
  __m256i pairs = _mm256_maddubs_epi16(bytes[0], _mm256_set1_epi32(x[0]));
#pragma GCC unroll 8
  for (size_t j = 1; j < 8; ++j) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(bytes[j], _mm256_set1_epi32(x[j])));
  }
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/// As vnni_tile, by 8 outputs.
template <size_t kR, bool kHasMins>
CLEAVE_AVX2 void avx2_tile(const Int4Job& job, int64_t panel, int64_t row) {
  constexpr int64_t kBytes = int4_block_bytes(kHasMins);
  constexpr size_t kParts = kInt4Panel / 8;
  const uint8_t* block = panel_of(job, panel);
  const __m256i low = _mm256_set1_epi8(15);
  __m256 sum[kR][kParts];
  for (auto& of_row : sum) std::fill_n(of_row, kParts, _mm256_setzero_ps());
  for (int64_t g = 0; g < job.groups; ++g, block += kBytes) {
    for (int64_t at = 0; at < kBytes; at += 64) {
      _mm_prefetch(block + kFetchAheadBytes + at, _MM_HINT_T0);
    }
    for (size_t part = 0; part < kParts; ++part) {
      __m256i bytes[8];
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const uint8_t* from = block + kWordBytes * static_cast<int64_t>(j) + 32 * part;
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        bytes[j] = _mm256_and_si256(pairs, low);
        bytes[j + 4] = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low);
      }
      const __m256 scale = halves8(block + kScalesAt + 16 * part);
      for (size_t r = 0; r < kR; ++r) {
        const int64_t at = (row + static_cast<int64_t>(r)) * job.groups + g;
        __m256i dots = avx2_dots(bytes, fours(job.x.values + at * kInt4Group));
        if constexpr (!kHasMins)
          dots = _mm256_add_epi32(dots, _mm256_set1_epi32(job.x.offsets[at]));
        const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(job.x.scales[at]));
        sum[r][part] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), factor, sum[r][part]);
        if constexpr (kHasMins) {
          sum[r][part] = _mm256_fnmadd_ps(halves8(block + kMinsAt + 16 * part),
                                          _mm256_set1_ps(job.x.totals[at]), sum[r][part]);
        }
      }
    }
  }
  const int64_t first = panel * kInt4Panel;
  for (size_t r = 0; r < kR; ++r) {
    float y[kInt4Panel];
    for (size_t part = 0; part < kParts; ++part) _mm256_storeu_ps(y + 8 * part, sum[r][part]);
    float* out = job.out + (row + static_cast<int64_t>(r)) * job.columns + first;
    for (int64_t c = 0; c < std::min(kInt4Panel, job.columns - first); ++c) {
      out[c] = job.bias != nullptr ? y[c] + job.bias[first + c] : y[c];
    }
  }
}

/// All rows from `row` on in tiles of at most kR.
template <size_t kR, bool kHasMins>
void vnni_rows(const Int4Job& job, int64_t panel, int64_t row) {
  constexpr auto kRows = static_cast<int64_t>(kR);
  for (; row + kRows <= job.rows; row += kRows) vnni_tile<kR, kHasMins>(job, panel, row);
  if constexpr (kR > 1) vnni_rows<kR - 1, kHasMins>(job, panel, row);
}

/// The same in tiles of AMX.
template <bool kHasMins>
void amx_rows(const Int4Job& job, int64_t panel) {
  for (int64_t row = 0; row < job.rows; row += GroupTiles::kRows) {
    amx_tile<kHasMins>(job, panel, row);
  }
}

template <size_t kR, bool kHasMins>
void avx2_rows(const Int4Job& job, int64_t panel, int64_t row) {
  constexpr auto kRows = static_cast<int64_t>(kR);
  for (; row + kRows <= job.rows; row += kRows) avx2_tile<kR, kHasMins>(job, panel, row);
  if constexpr (kR > 1) avx2_rows<kR - 1, kHasMins>(job, panel, row);
}
#endif

float half_at(const uint8_t* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}

/// The dot product of one output's numbers with a group of x.
int32_t dot_of(const uint8_t* block, int64_t column, const int8_t* x) {
  int32_t sum = 0;
  for (int64_t k = 0; k < kInt4Group / 2; ++k) {
    const int32_t pair = block[kWordBytes * (k / 4) + 4 * column + k % 4];
    sum += (pair & 15) * x[k] + (pair >> 4) * x[k + kInt4Group / 2];
  }
  return sum;
}

void portable_panel(const Int4Job& job, int64_t panel) {
  const int64_t first = panel * kInt4Panel;
  for (int64_t row = 0; row < job.rows; ++row) {
    float y[kInt4Panel] = {};
    const uint8_t* block = panel_of(job, panel);
    for (int64_t g = 0; g < job.groups; ++g, block += int4_block_bytes(job.has_mins)) {
      const int64_t at = row * job.groups + g;
      const int32_t offset = job.has_mins ? 0 : job.x.offsets[at];
      for (int64_t c = 0; c < kInt4Panel; ++c) {
        const int32_t dot = dot_of(block, c, job.x.values + at * kInt4Group) + offset;
        y[c] += static_cast<float>(dot) * (half_at(block + kScalesAt + 2 * c) * job.x.scales[at]);
        if (job.has_mins) y[c] -= half_at(block + kMinsAt + 2 * c) * job.x.totals[at];
      }
    }
    for (int64_t c = 0; c < std::min(kInt4Panel, job.columns - first); ++c) {
      job.out[row * job.columns + first + c] =
          job.bias != nullptr ? y[c] + job.bias[first + c] : y[c];
    }
  }
}

/// Products of up to this many rows wait for memory, so that tiles would gain nothing.
constexpr int64_t kFewRows = 8;

Int4Loops best_loops(int64_t rows) {
  if (rows > kFewRows && has_int4_loops(Int4Loops::kAmx)) return Int4Loops::kAmx;
  if (has_int4_loops(Int4Loops::kVnni)) return Int4Loops::kVnni;
  return has_int4_loops(Int4Loops::kAvx2) ? Int4Loops::kAvx2 : Int4Loops::kPortable;
}

}  // namespace

bool has_int4_loops(Int4Loops loops) {
#if defined(__x86_64__)
  if (loops == Int4Loops::kAmx) return has_int4_loops(Int4Loops::kVnni) && has_tiles();
  if (loops == Int4Loops::kVnni) return has_int8_loops(Int8Loops::kVnni);
  if (loops == Int4Loops::kAvx2) return has_isa(Isa::kAvx2);
#endif
  return loops == Int4Loops::kPortable;
}

void int4_products(const Int4Job& job, int64_t begin, int64_t end) {
  int4_products(job, begin, end, best_loops(job.rows));
}

void int4_products(const Int4Job& job, int64_t begin, int64_t end, Int4Loops loops) {
  for (int64_t panel = begin; panel < end; ++panel) {
#if defined(__x86_64__)
    if (loops == Int4Loops::kAmx) {
      job.has_mins ? amx_rows<true>(job, panel) : amx_rows<false>(job, panel);
      continue;
    }
    if (loops == Int4Loops::kVnni) {
      job.has_mins ? vnni_rows<8, true>(job, panel, 0) : vnni_rows<8, false>(job, panel, 0);
      continue;
    }
    if (loops == Int4Loops::kAvx2) {
      job.has_mins ? avx2_rows<4, true>(job, panel, 0) : avx2_rows<4, false>(job, panel, 0);
      continue;
    }
#endif
    portable_panel(job, panel);
  }
}

}  // namespace cleave::inline kernels
