#pragma once
// Greedy decoding's choice of a token, so that the next step need not wait for the host.
#include <cmath>
#include <limits>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

inline constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

/// sum exp(from - to), where a sum of nothing has the largest logit -infinity.
CLEAVE_DEVICE float rescaled(float sum, float from, float to) {
  return to == kNoLogit ? sum : sum * std::exp(from - to);
}

/// The best of what the threads of a block have, on every thread.
template <class Block>
CLEAVE_DEVICE BestOfPart best_over_block(const Block& block, const BestOfPart& own) {
  const float largest =
      over_block(block, own.largest, [](float a, float b) { return a > b ? a : b; });
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t id = over_block(block, own.largest == largest ? own.id : kNone,
                                [](int64_t a, int64_t b) { return a < b ? a : b; });
  return {.id = id,
          .largest = largest,
          .sum = sum_over_block(block, rescaled(own.sum, own.largest, largest))};
}

/// A block for each part of a row.
template <class T>
struct BestOfPartKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const BestTokenJob& job) const {
    const int64_t r = block.index() / job.num_parts;
    const int64_t part = block.index() - r * job.num_parts;
    const Row<const T> row(static_cast<const T*>(job.logits), r, job.width);
    const int64_t size = kQuad * parts_of(parts_of(job.width, kQuad), job.num_parts);
    const int64_t begin = part * size;
    const int64_t end = begin + size < job.width ? begin + size : job.width;
    BestOfPart best{.id = 0, .largest = kNoLogit, .sum = 0};
    for_quads(block, end - begin, [&](int64_t i) {
      const int64_t first = begin + i;
      const Quad z = row.load(first);
      const float before = best.largest;
      for (int k = 0; k < kQuad && first + k < job.width; ++k) {
        if (!(z.at[k] > best.largest)) continue;
        best.largest = z.at[k];
        best.id = first + k;
      }
      best.sum = rescaled(best.sum, before, best.largest);
      for (int k = 0; k < kQuad && first + k < job.width; ++k) {
        best.sum += std::exp(z.at[k] - (best.largest == kNoLogit ? 0 : best.largest));
      }
    });
    best = best_over_block(block, best);
    if (block.thread() == 0) job.parts[block.index()] = best;
  }
};

/// A warp for each row.
struct BestTokenKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const BestTokenJob& job) const {
    const BestOfPart* const parts = job.parts + block.index() * job.num_parts;
    BestOfPart best{.id = 0, .largest = kNoLogit, .sum = 0};
    for (int64_t p = block.thread(); p < job.num_parts; p += block.threads()) {
      const BestOfPart part = parts[p];
      const float before = best.largest;
      if (part.largest > before) {
        best.largest = part.largest;
        best.id = part.id;
      }
      best.sum =
          rescaled(best.sum, before, best.largest) + rescaled(part.sum, part.largest, best.largest);
    }
    best = best_over_block(block, best);
    if (block.thread() != 0) return;
    double* const result = job.results + block.index() * kChoiceNumbers;
    result[0] = static_cast<double>(best.id);
    result[1] = static_cast<double>(best.largest);
    result[2] = static_cast<double>(best.largest);
    result[3] = static_cast<double>(best.sum);
    job.ids[block.index()] = best.id;
    if (block.index() == 0) *job.num_keys += 1;
  }
};

}  // namespace cleave::inline kernels
