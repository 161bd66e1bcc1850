#pragma once
// RMSNorm and LayerNorm. The formulas are those of kernels/cpu/rows.cc.
#include <cmath>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// A block for each row.
template <class T>
struct RmsNormKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RmsNormJob& job) const {
    const Row<const T> x(static_cast<const T*>(job.x), block.index(), job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<T> y(static_cast<T*>(job.y), block.index(), job.width);
    float squares = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad quad = x.load(i);
      for (const float v : quad.at) squares += v * v;
    });
    const float mean = sum_over_block(block, squares) / static_cast<float>(job.width);
    const float scale = 1 / std::sqrt(mean + static_cast<float>(job.eps));
    if (block.thread() == 0) job.scales[block.index()] = scale;
    for_quads(block, job.width, [&](int64_t i) {
      Quad v = x.load(i);
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad; ++k) v.at[k] *= scale * (w.at[k] + job.offset);
      y.store(v, i);
    });
  }
};

/// A block for each row.
template <class T>
struct LayerNormKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const LayerNormJob& job) const {
    const Row<const T> x(static_cast<const T*>(job.x), block.index(), job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<const T> bias(static_cast<const T*>(job.bias), 0, job.width);
    const Row<T> y(static_cast<T*>(job.y), block.index(), job.width);
    float sum = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad quad = x.load(i);
      for (const float v : quad.at) sum += v;
    });
    const float mean = sum_over_block(block, sum) / static_cast<float>(job.width);
    float squares = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad v = x.load(i);
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        squares += (v.at[k] - mean) * (v.at[k] - mean);
      }
    });
    const float variance = sum_over_block(block, squares) / static_cast<float>(job.width);
    const float scale = 1 / std::sqrt(variance + static_cast<float>(job.eps));
    if (block.thread() == 0) {
      job.means[block.index()] = mean;
      job.scales[block.index()] = scale;
    }
    for_quads(block, job.width, [&](int64_t i) {
      Quad v = x.load(i);
      const Quad w = weight.load(i);
      const Quad b = bias.load(i);
      for (int k = 0; k < kQuad; ++k) v.at[k] = (v.at[k] - mean) * scale * w.at[k] + b.at[k];
      y.store(v, i);
    });
  }
};

/// Where a block sums over its rows: its shared memory if it is large enough, else the result. Each
/// thread has the same columns in every row, so no thread waits for another.
template <class Block>
CLEAVE_DEVICE float* start_sums(const Block& block, int64_t width, bool is_shared, float* result) {
  float* const sums =
      is_shared ? reinterpret_cast<float*>(static_cast<char*>(block.shared()) + kOverBlockBytes)
                : result;
  for_quads(block, width, [&](int64_t i) {
    for (int k = 0; k < kQuad && i + k < width; ++k) sums[i + k] = 0;
  });
  return sums;
}
template <class Block>
CLEAVE_DEVICE void store_sums(const Block& block, int64_t width, const float* sums, float* result) {
  if (sums == result) return;
  for_quads(block, width, [&](int64_t i) {
    for (int k = 0; k < kQuad && i + k < width; ++k) result[i + k] = sums[i + k];
  });
}

/// A block for kNormPart rows.
template <class T>
struct RmsNormBackwardKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RmsNormJob& job, int64_t rows,
                                float* parts, bool is_shared) const {
    const int64_t width = job.width;
    float* const result = parts + block.index() * width;
    float* const sums = start_sums(block, width, is_shared, result);
    const int64_t begin = block.index() * kNormPart;
    for (int64_t r = begin; r < rows && r < begin + kNormPart; ++r) of_row(block, job, r, sums);
    store_sums(block, width, sums, result);
  }

 private:
  template <class Block>
  CLEAVE_DEVICE static void of_row(const Block& block, const RmsNormJob& job, int64_t r,
                                   float* sums) {
    const Row<const T> x(static_cast<const T*>(job.x), r, job.width);
    const Row<const T> dy(static_cast<const T*>(job.dy), r, job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<T> dx(static_cast<T*>(job.dx), r, job.width);
    const float scale = job.scales[r];
    float dot = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad v = x.load(i);
      const Quad d = dy.load(i);
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        const float g = d.at[k] * (v.at[k] * scale);
        sums[i + k] += g;
        dot += g * (w.at[k] + job.offset);
      }
    });
    const float mean = sum_over_block(block, dot) / static_cast<float>(job.width);
    for_quads(block, job.width, [&](int64_t i) {
      const Quad v = x.load(i);
      Quad d = dy.load(i);
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad; ++k) {
        d.at[k] = scale * (d.at[k] * (w.at[k] + job.offset) - v.at[k] * scale * mean);
      }
      dx.store(d, i);
    });
  }
};

/// A block for kNormPart rows.
template <class T>
struct LayerNormBackwardKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const LayerNormJob& job, int64_t rows,
                                float* parts, bool is_shared) const {
    const int64_t width = 2 * job.width;
    float* const result = parts + block.index() * width;
    float* const sums = start_sums(block, job.width, is_shared, result);
    float* const bias_sums = sums + job.width;
    for_quads(block, job.width, [&](int64_t i) {
      for (int k = 0; k < kQuad && i + k < job.width; ++k) bias_sums[i + k] = 0;
    });
    const int64_t begin = block.index() * kNormPart;
    for (int64_t r = begin; r < rows && r < begin + kNormPart; ++r) of_row(block, job, r, sums);
    store_sums(block, job.width, sums, result);
    store_sums(block, job.width, bias_sums, result + job.width);
  }

 private:
  template <class Block>
  CLEAVE_DEVICE static void of_row(const Block& block, const LayerNormJob& job, int64_t r,
                                   float* sums) {
    const Row<const T> x(static_cast<const T*>(job.x), r, job.width);
    const Row<const T> dy(static_cast<const T*>(job.dy), r, job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<T> dx(static_cast<T*>(job.dx), r, job.width);
    const float mean = job.means[r];
    const float scale = job.scales[r];
    float sum = 0;
    float dot = 0;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad v = x.load(i);
      const Quad d = dy.load(i);
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        const float dn = d.at[k] * ((v.at[k] - mean) * scale);
        sums[i + k] += dn;
        sums[job.width + i + k] += d.at[k];
        sum += d.at[k] * w.at[k];
        dot += dn * w.at[k];
      }
    });
    const auto width = static_cast<float>(job.width);
    const float mean_g = sum_over_block(block, sum) / width;
    const float mean_gn = sum_over_block(block, dot) / width;
    for_quads(block, job.width, [&](int64_t i) {
      const Quad v = x.load(i);
      Quad d = dy.load(i);
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad; ++k) {
        d.at[k] = scale * (d.at[k] * w.at[k] - mean_g - (v.at[k] - mean) * scale * mean_gn);
      }
      dx.store(d, i);
    });
  }
};

/// A block for each part of kNormPart rows, with shared memory for `num_sums` sums over rows, if
/// there is enough of it.
constexpr Grid grid_of_norm_parts(int64_t rows, int64_t width, int64_t num_sums) {
  Grid grid = grid_of_rows(parts_of(rows, kNormPart), width);
  const int64_t bytes = num_sums * width * static_cast<int64_t>(sizeof(float));
  if (grid.shared_bytes + bytes <= kMostSharedBytes) grid.shared_bytes += bytes;
  return grid;
}

}  // namespace cleave::inline kernels
