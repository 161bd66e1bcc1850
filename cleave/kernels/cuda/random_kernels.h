#pragma once
// Random numbers on a device, with the bits of base/philox.h.
#include "cleave/base/philox_math.h"
#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// The number in the stream of local element `i`.
CLEAVE_DEVICE uint64_t stream_index(const ShardPlace& place, int64_t i) {
  if (place.held == place.whole) return place.first + static_cast<uint64_t>(i);
  const int64_t outer = i / (place.held * place.inner);
  const int64_t rest = i - outer * (place.held * place.inner);
  const int64_t middle = rest / place.inner;
  int64_t shift = place.pieces[0].begin - place.pieces[0].place;
  for (int k = 1; k < place.num_pieces; ++k) {
    if (middle >= place.pieces[k].place) shift = place.pieces[k].begin - place.pieces[k].place;
  }
  const int64_t index =
      (outer * place.whole + middle + shift) * place.inner + (rest - middle * place.inner);
  return place.first + static_cast<uint64_t>(index);
}

/// words[lane], without memory that is indexed by a variable.
template <class T>
CLEAVE_DEVICE T pick(const std::array<T, 4>& words, uint64_t lane) {
  const T low = lane == 0 ? words[0] : words[1];
  const T high = lane == 2 ? words[2] : words[3];
  return lane < 2 ? low : high;
}

/// Each thread has one quad.
template <class T>
struct DropoutKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const DropoutJob& job) const {
    const int64_t begin = kQuad * (block.index() * block.threads() + block.thread());
    if (begin >= job.count) return;
    const auto* x = static_cast<const T*>(job.x);
    auto* out = static_cast<T*>(job.out);
    const int64_t count = job.count - begin;
    Quad values{{1, 1, 1, 1}};
    if (x != nullptr) values = load_quad(x + begin, count, is_quad_aligned(x));
    std::array<uint32_t, 4> words{};
    uint64_t known = ~uint64_t{0};
    for (int k = 0; k < kQuad && k < count; ++k) {
      const uint64_t index = stream_index(job.place, begin + k);
      if (index / 4 != known) {
        known = index / 4;
        words = philox_words(job.key, known, job.step);
      }
      values.at[k] *= uniform_of(pick(words, index % 4)) >= job.p ? job.scale : 0;
    }
    store_quad(values, out + begin, count, is_quad_aligned(out));
  }
};

/// Each thread has one quad.
template <class T>
struct InitialKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const InitialJob& job) const {
    const int64_t begin = kQuad * (block.index() * block.threads() + block.thread());
    auto* out = static_cast<T*>(job.out);
    std::array<double, 4> numbers{};
    uint64_t known = ~uint64_t{0};
    for (int64_t i = begin; i < begin + kQuad && i < job.count; ++i) {
      const uint64_t index = stream_index(job.place, i);
      if (index / 4 != known) {
        known = index / 4;
        numbers = job.is_normal ? normal_block(job.key, known) : symmetric_block(job.key, known);
      }
      store_number(static_cast<float>(pick(numbers, index % 4) * job.factor), out + i);
    }
  }

 private:
  /// 2 u - 1 of the four uniform numbers of one counter value.
  CLEAVE_DEVICE static std::array<double, 4> symmetric_block(uint64_t key, uint64_t block) {
    const std::array<uint32_t, 4> words = philox_words(key, block, 0);
    std::array<double, 4> out{};
    for (size_t k = 0; k < 4; ++k) out[k] = double{uniform_of(words[k])} * 2 - 1;
    return out;
  }
};

}  // namespace cleave::inline kernels
