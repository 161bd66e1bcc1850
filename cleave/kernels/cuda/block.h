#pragma once
// The CUDA kernels are function templates over the block of threads that runs them: CudaBlock of
// kernels.cu on a GPU, FiberBlock of tests/support in tests on the CPU. A block has
//
//   index()                 its number in the grid
//   thread(), threads()     the number of this thread, and of all; a multiple of kWarp
//   sync()                  barrier of the block's threads; memory written before it is visible
//   exchange(value, mask)   the value of the thread in this warp whose number differs in `mask`
//   shared()                the block's memory, of the size that the launch asked for
//   wait_for_earlier()      waits until all kernels that were launched before have ended. A kernel
//                           that has not called it may only read what the last two do not write
//
// All threads of a block call sync() and exchange() equally often.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cleave/base/device_code.h"

namespace cleave::inline kernels {

/// Threads that run together.
inline constexpr int kWarp = 32;

/// How many blocks of how many threads run a kernel, and the bytes of memory that each block
/// shares.
struct Grid {
  int64_t blocks = 0;
  int threads = 0;
  int64_t shared_bytes = 0;
};
/// Limits of a block, so that every GPU supports it and a thread may have 64 registers.
inline constexpr int kMostThreads = 256;
inline constexpr int64_t kMostSharedBytes = 48 << 10;

/// ceil(count / size).
constexpr int64_t parts_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/// fp32 from fp32 or bf16 (the upper half of an fp32).
CLEAVE_DEVICE float load_number(const float* from) {
  return *from;
}
CLEAVE_DEVICE float load_number(const uint16_t* from) {
  const uint32_t bits = uint32_t{*from} << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Writes fp32, or bf16 rounded to nearest, ties to even; NaN stays NaN.
CLEAVE_DEVICE void store_number(float value, float* to) {
  *to = value;
}
CLEAVE_DEVICE void store_number(float value, uint16_t* to) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  bits = is_nan ? bits | 0x00400000 : bits + 0x7FFF + ((bits >> 16) & 1);
  *to = static_cast<uint16_t>(bits >> 16);
}

#ifdef __CUDA_ARCH__
/// A type of 8 or 16 bytes that is read in one access.
template <size_t kBytes>
using OneAccess = std::conditional_t<kBytes == 16, uint4, uint2>;
#endif
/// Reads `Words`, of 8 or 16 bytes, from memory that is aligned to their size, in one access: nvcc
/// 13 makes accesses of single bytes of a memcpy.
template <class Words>
CLEAVE_DEVICE Words load_aligned(const void* from) {
  Words words{};
#ifdef __CUDA_ARCH__
  const auto bits = *static_cast<const OneAccess<sizeof(Words)>*>(from);
  memcpy(&words, &bits, sizeof words);
#else
  memcpy(&words, from, sizeof words);
#endif
  return words;
}
/// Writes them likewise, to global memory.
template <class Words>
CLEAVE_DEVICE void store_aligned(const Words& words, void* to) {
#ifdef __CUDA_ARCH__  // nvcc 13 splits some stores of C++
  uint32_t bits[sizeof(Words) / sizeof(uint32_t)];
  memcpy(bits, &words, sizeof words);
  if constexpr (sizeof(Words) == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                 : "memory");
  } else {
    static_assert(sizeof(Words) == 8);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(bits[0]), "r"(bits[1])
                 : "memory");
  }
#else
  memcpy(to, &words, sizeof words);
#endif
}

/// Neighbouring numbers that a thread reads and writes together, in one access where they are
/// aligned to their size.
inline constexpr int kQuad = 4;
struct Quad {
  float at[kQuad]{};
};

/// The numbers of a quad as they lie in memory: bf16 ones take half the registers.
template <class T>
struct QuadWords {
  T at[kQuad]{};
  CLEAVE_DEVICE Quad numbers() const {
    Quad quad;
    for (int k = 0; k < kQuad; ++k) quad.at[k] = load_number(at + k);
    return quad;
  }
};

/// The first `count` of a quad; zeros for the others.
template <class T>
CLEAVE_DEVICE QuadWords<T> load_words(const T* from, int64_t count, bool is_aligned) {
  if (is_aligned && count >= kQuad) return load_aligned<QuadWords<T>>(from);
  QuadWords<T> words;
  for (int k = 0; k < kQuad; ++k) {
    if (k < count) words.at[k] = from[k];
  }
  return words;
}
/// The same as fp32.
template <class T>
CLEAVE_DEVICE Quad load_quad(const T* from, int64_t count, bool is_aligned) {
  return load_words(from, count, is_aligned).numbers();
}

/// A quad's numbers as they lie in memory.
template <class T>
CLEAVE_DEVICE QuadWords<T> rounded(const Quad& quad) {
  QuadWords<T> words;
#ifdef __CUDA_ARCH__  // two bf16 in one instruction
  if constexpr (std::is_same_v<T, uint16_t>) {
    uint32_t pairs[kQuad / 2];
    for (int k = 0; k < kQuad / 2; ++k) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(pairs[k])
          : "f"(quad.at[2 * k + 1]), "f"(quad.at[2 * k]));
    }
    memcpy(words.at, pairs, sizeof words.at);
  } else {
    for (int k = 0; k < kQuad; ++k) words.at[k] = quad.at[k];
  }
#else
  for (int k = 0; k < kQuad; ++k) store_number(quad.at[k], words.at + k);
#endif
  return words;
}

/// Writes the first `count` of a quad.
template <class T>
CLEAVE_DEVICE void store_quad(const Quad& quad, T* to, int64_t count, bool is_aligned) {
  if (is_aligned && count >= kQuad) {
    store_aligned(rounded<T>(quad), to);
    return;
  }
  for (int k = 0; k < kQuad; ++k) {
    if (k < count) store_number(quad.at[k], to + k);
  }
}

/// Whether quads are aligned that begin at multiples of kQuad numbers after `data`.
template <class T>
CLEAVE_DEVICE bool is_quad_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (kQuad * sizeof(T)) == 0;
}

/// e^v; on GPUs for results in bf16 by an instruction with a relative error of (2 + |v|) 2^-22.
template <class T>
CLEAVE_DEVICE float exp_for(float v) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(uint16_t)) return __expf(v);
#endif
  return std::exp(v);
}
/// 1 / (1 + e^-v), likewise.
template <class T>
CLEAVE_DEVICE float sigmoid_for(float v) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(uint16_t)) return __fdividef(1, 1 + __expf(-v));
#endif
  return 1 / (1 + std::exp(-v));
}

/// One row of a matrix [.., width] of T (or const T), in quads.
template <class T>
class Row {
 public:
  /// Row `row` of `matrix`.
  CLEAVE_DEVICE Row(T* matrix, int64_t row, int64_t width)
      : data_(matrix + row * width),
        width_(width),
        is_aligned_(width % kQuad == 0 && is_quad_aligned(matrix)) {}
  /// The quad that begins at column `i`; zeros after the row's end.
  CLEAVE_DEVICE QuadWords<std::remove_const_t<T>> words(int64_t i) const {
    return load_words<std::remove_const_t<T>>(data_ + i, width_ - i, is_aligned_);
  }
  CLEAVE_DEVICE Quad load(int64_t i) const { return words(i).numbers(); }
  CLEAVE_DEVICE void store(const Quad& quad, int64_t i) const {
    store_quad(quad, data_ + i, width_ - i, is_aligned_);
  }

 private:
  T* data_;
  int64_t width_;
  bool is_aligned_;
};

/// Calls work(i) for the first column of each quad of a row that this thread has.
template <class Block, class Work>
CLEAVE_DEVICE void for_quads(const Block& block, int64_t width, const Work& work) {
  const int64_t step = int64_t{kQuad} * block.threads();
  for (int64_t i = int64_t{kQuad} * block.thread(); i < width; i += step) work(i);
}

/// combine(.. combine(a_0, a_1) ..) of the values of all threads, on every thread, in an order that
/// depends only on the number of threads. Uses the first bytes of the block's shared memory, one
/// value for each warp.
template <class Block, class T, class Combine>
CLEAVE_DEVICE T over_block(const Block& block, T value, const Combine& combine) {
  for (int mask = 1; mask < kWarp; mask *= 2) value = combine(value, block.exchange(value, mask));
  T* const of_warps = static_cast<T*>(block.shared());
  if (block.thread() % kWarp == 0) of_warps[block.thread() / kWarp] = value;
  block.sync();
  T total = of_warps[0];
  for (int warp = 1; warp < block.threads() / kWarp; ++warp) total = combine(total, of_warps[warp]);
  block.sync();  // the next call writes there
  return total;
}
/// Shared memory of over_block().
inline constexpr int64_t kOverBlockBytes = int64_t{8} * kMostThreads / kWarp;

/// A grid in which each thread has one quad of `count` elements.
constexpr Grid grid_of_quads(int64_t count) {
  return {.blocks = parts_of(count, int64_t{kQuad} * kMostThreads), .threads = kMostThreads};
}

/// A grid of `blocks` blocks, each with enough threads for a row and memory for over_block().
constexpr Grid grid_of_rows(int64_t blocks, int64_t width) {
  const int64_t warps = parts_of(width, int64_t{kQuad} * kWarp);
  const int64_t most = kMostThreads / kWarp;
  return {.blocks = blocks,
          .threads = kWarp * static_cast<int>(warps < most ? warps : most),
          .shared_bytes = kOverBlockBytes};
}

/// The sum of the values of all threads.
template <class Block, class T>
CLEAVE_DEVICE T sum_over_block(const Block& block, T value) {
  return over_block(block, value, [](T a, T b) { return a + b; });
}
/// The same for many sums one after the other, with one barrier each: callers alternate `slot`
/// between 0 and 1.
template <class Block>
CLEAVE_DEVICE float sum_in_slot(const Block& block, float value, int slot) {
  for (int mask = 1; mask < kWarp; mask *= 2) value += block.exchange(value, mask);
  float* const of_warps =
      static_cast<float*>(block.shared()) + int64_t{slot} * (kMostThreads / kWarp);
  if (block.thread() % kWarp == 0) of_warps[block.thread() / kWarp] = value;
  block.sync();
  float total = of_warps[0];
  for (int warp = 1; warp < block.threads() / kWarp; ++warp) total += of_warps[warp];
  return total;
}
static_assert(2 * sizeof(float) * kMostThreads / kWarp <= kOverBlockBytes);

}  // namespace cleave::inline kernels
