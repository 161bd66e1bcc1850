#pragma once
// The CUDA kernels are function templates over the block of threads that runs them: CudaBlock of
// kernels.cu on a GPU, FiberBlock of tests/support in tests on the CPU. A block has
//
//   index()                 its number in the grid
//   thread(), threads()     the number of this thread, and of all; a multiple of kWarp
//   sync()                  barrier of the block's threads; memory written before it is visible
//   exchange(value, mask)   the value of the thread in this warp whose number differs in `mask`
//   shared()                the block's memory, of the size that the launch asked for
//
// All threads of a block call sync() and exchange() equally often.
#include <cstdint>
#include <cstring>

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

/// Neighbouring numbers that a thread reads and writes together, in one access where they are
/// aligned to their size.
inline constexpr int kQuad = 4;
struct Quad {
  float at[kQuad]{};
};

/// The first `count` of a quad; zeros for the others.
template <class T>
CLEAVE_DEVICE Quad load_quad(const T* from, int64_t count, bool is_aligned) {
  Quad quad{};
  if (is_aligned && count >= kQuad) {
    T words[kQuad];
    const void* const aligned = from;  // nvcc 13 miscompiles the builtin of another pointer
    memcpy(words, __builtin_assume_aligned(aligned, sizeof words), sizeof words);
    for (int k = 0; k < kQuad; ++k) quad.at[k] = load_number(words + k);
    return quad;
  }
  for (int k = 0; k < kQuad; ++k) {
    if (k < count) quad.at[k] = load_number(from + k);
  }
  return quad;
}

/// Writes the first `count` of a quad.
template <class T>
CLEAVE_DEVICE void store_quad(const Quad& quad, T* to, int64_t count, bool is_aligned) {
  if (is_aligned && count >= kQuad) {
    T words[kQuad];
    for (int k = 0; k < kQuad; ++k) store_number(quad.at[k], words + k);
    void* const aligned = to;
    memcpy(__builtin_assume_aligned(aligned, sizeof words), words, sizeof words);
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
  CLEAVE_DEVICE Quad load(int64_t i) const { return load_quad(data_ + i, width_ - i, is_aligned_); }
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

}  // namespace cleave::inline kernels
