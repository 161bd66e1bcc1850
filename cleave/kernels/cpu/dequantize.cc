#include "cleave/kernels/cpu/dequantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/dequantize.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

template <class T>
void dequantize_int8(const DequantizeJob& job, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int8_t* from = job.values + r * job.width;
    T* to = static_cast<T*>(job.to) + r * job.width;
    const float of_row = job.has_column_scales ? 1.0F : job.scales[r];
    const FloatVec of_rows = hn::Set(kFloats, of_row);
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec scale = job.has_column_scales ? load(job.scales + i) : of_rows;
          store(hn::Mul(load(from + i), scale), to + i);
        },
        [&](int64_t i) {
          const float scale = job.has_column_scales ? job.scales[i] : of_row;
          store_one(static_cast<float>(from[i]) * scale, to + i);
        });
  }
}

/// The two numbers of each byte of kNf4.
struct Nf4Pairs {
  float numbers[256][2];
};
constexpr Nf4Pairs make_pairs() {
  Nf4Pairs out{};
  for (size_t byte = 0; byte < 256; ++byte) {
    out.numbers[byte][0] = kNf4Numbers[byte % 16];
    out.numbers[byte][1] = kNf4Numbers[byte / 16];
  }
  return out;
}
constexpr Nf4Pairs kPairs = make_pairs();

const float* pair_at(const int8_t* values, int64_t element) {
  return kPairs.numbers[static_cast<uint8_t>(values[element / 2])];
}

/// The numbers of `count` elements from `first` on.
HWY_INLINE void expand(const int8_t* values, int64_t first, int64_t count, float* to) {
  int64_t i = 0;
  if (first % 2 != 0 && count > 0) to[i++] = pair_at(values, first)[1];
  for (; i + 2 <= count; i += 2) __builtin_memcpy(to + i, pair_at(values, first + i), 8);
  if (i < count) to[i] = pair_at(values, first + i)[0];
}

constexpr int64_t kMostColumns = 256;

/// The end of the columns that one pass reads from `c` on: those of one block, if each row has its
/// own scales.
int64_t end_of_run(const DequantizeJob& job, int64_t c) {
  const int64_t most = c + kMostColumns < job.width ? c + kMostColumns : job.width;
  if (job.has_column_scales) return most;
  int64_t end = c + 1;
  while (end < most && job.block_of[end] == job.block_of[c]) ++end;
  return end;
}

template <class T>
void dequantize_nf4(const DequantizeJob& job, int64_t begin, int64_t end) {
  alignas(64) float numbers[kMostColumns];
  for (int64_t r = begin; r < end; ++r) {
    T* to = static_cast<T*>(job.to) + r * job.width;
    for (int64_t c = 0, stop = 0; c < job.width; c = stop) {
      stop = end_of_run(job, c);
      expand(job.values, r * job.width + c, stop - c, numbers);
      const float* scales = job.has_column_scales
                                ? job.scales + job.block_of[r] * job.width + c
                                : job.scales + r * job.num_blocks + job.block_of[c];
      const FloatVec of_block = hn::Set(kFloats, *scales);
      sweep(
          stop - c,
          [&](int64_t i) {
            const FloatVec scale = job.has_column_scales ? load(scales + i) : of_block;
            store(hn::Mul(load(numbers + i), scale), to + c + i);
          },
          [&](int64_t i) {
            const float scale = job.has_column_scales ? scales[i] : *scales;
            store_one(numbers[i] * scale, to + c + i);
          });
    }
  }
}

void dequantize_task(const DequantizeJob& job, int64_t begin, int64_t end) {
  if (job.block_of == nullptr) {
    job.is_bf16 ? dequantize_int8<uint16_t>(job, begin, end)
                : dequantize_int8<float>(job, begin, end);
  } else {
    job.is_bf16 ? dequantize_nf4<uint16_t>(job, begin, end)
                : dequantize_nf4<float>(job, begin, end);
  }
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(dequantize_task);

void dequantize_rows(const DequantizeJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(dequantize_task)(job, begin, end);
}
}  // namespace cleave::inline kernels
#endif
