#pragma once
// The loss's passes over the logits, without fp32 copies of them.
#include <cmath>
#include <limits>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// A block for each row of logits, read once: a thread scales its sum when it finds a larger logit.
template <class T>
struct SoftmaxSumsKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const LogitsJob& job) const {
    const Row<const T> row(static_cast<const T*>(job.logits), block.index(), job.width);
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float largest = kNone;
    float sum = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad z = row.load(i);
      float top = largest;
      for (int k = 0; k < kQuad && i + k < job.width; ++k) top = z.at[k] > top ? z.at[k] : top;
      if (top > largest) sum *= exp_for<T>(largest - top);
      largest = top;
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        sum += exp_for<T>(z.at[k] - (top == kNone ? 0 : top));
      }
    });
    const float top = over_block(block, largest, [](float a, float b) { return a > b ? a : b; });
    // A thread without columns has the sum 0 of -infinity.
    sum = sum_over_block(block, sum * exp_for<T>(largest - (top == kNone ? 0 : top)));
    if (block.thread() != 0) return;
    job.largest[block.index()] = top;
    job.sums[block.index()] = sum;
  }
};

/// A block for each row.
template <class T>
struct SoftmaxGradientKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const LogitsGradientJob& job) const {
    const int64_t r = block.index();
    const Row<const T> logits(static_cast<const T*>(job.logits), r, job.width);
    const Row<T> gradient(static_cast<T*>(job.gradient), r, job.width);
    const float factor = job.factor[r];
    const float largest = job.largest[r];
    const float sum = job.sums[r];
    const int64_t target = job.target[r];
    for_quads(block, job.width, [&](int64_t i) {
      Quad g{};
      if (factor != 0) {  // the logits of ignored rows may be anything
        const Quad z = logits.load(i);
        for (int k = 0; k < kQuad; ++k) {
          const float taken = i + k == target ? job.weight : 0;
          g.at[k] = (exp_for<T>(z.at[k] - largest) / sum - job.spread - taken) * factor;
        }
      }
      gradient.store(g, i);
    });
  }
};

}  // namespace cleave::inline kernels
