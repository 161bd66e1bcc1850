#pragma once
// RMSNorm and LayerNorm. The formulas are those of kernels/cpu/rows.cc.
#include <cmath>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// Quads of a row that a thread keeps in registers, so that it reads them once.
inline constexpr int kKept = 2;

/// Calls work(i, n) for the n-th quad that this thread keeps, which begins at column i.
template <class Block, class Work>
CLEAVE_DEVICE void for_kept_quads(const Block& block, int64_t width, const Work& work) {
  for (int n = 0; n < kKept; ++n) {
    const int64_t i = int64_t{kQuad} * (block.thread() + n * block.threads());
    if (i < width) work(i, n);
  }
}
/// Calls work(i) for the first column of each quad that this thread has and does not keep.
template <class Block, class Work>
CLEAVE_DEVICE void for_other_quads(const Block& block, int64_t width, const Work& work) {
  const int64_t step = int64_t{kQuad} * block.threads();
  CLEAVE_NOT_UNROLLED
  for (int64_t i = int64_t{kQuad} * block.thread() + kKept * step; i < width; i += step) work(i);
}

/// A block for each row.
template <class T>
struct RmsNormKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RmsNormJob& job) const {
    const Row<const T> x(static_cast<const T*>(job.x), block.index(), job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<T> y(static_cast<T*>(job.y), block.index(), job.width);
    Quad kept[kKept]{};
    float squares = 0;
    const auto add = [&](const Quad& quad) {
      for (const float v : quad.at) squares += v * v;
    };
    for_kept_quads(block, job.width, [&](int64_t i, int n) {
      kept[n] = x.load(i);
      add(kept[n]);
    });
    for_other_quads(block, job.width, [&](int64_t i) { add(x.load(i)); });
    const float mean = sum_over_block(block, squares) / static_cast<float>(job.width);
    const float scale = 1 / std::sqrt(mean + static_cast<float>(job.eps));
    if (block.thread() == 0) job.scales[block.index()] = scale;
    const auto write = [&](Quad v, int64_t i) {
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad; ++k) v.at[k] *= scale * (w.at[k] + job.offset);
      y.store(v, i);
    };
    for_kept_quads(block, job.width, [&](int64_t i, int n) { write(kept[n], i); });
    for_other_quads(block, job.width, [&](int64_t i) { write(x.load(i), i); });
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
    Quad kept[kKept]{};
    float sum = 0;
    const auto add = [&](const Quad& quad) {
      for (const float v : quad.at) sum += v;
    };
    for_kept_quads(block, job.width, [&](int64_t i, int n) {
      kept[n] = x.load(i);
      add(kept[n]);
    });
    for_other_quads(block, job.width, [&](int64_t i) { add(x.load(i)); });
    const float mean = sum_over_block(block, sum) / static_cast<float>(job.width);
    float squares = 0;
    const auto add_squares = [&](const Quad& v, int64_t i) {
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        squares += (v.at[k] - mean) * (v.at[k] - mean);
      }
    };
    for_kept_quads(block, job.width, [&](int64_t i, int n) { add_squares(kept[n], i); });
    for_other_quads(block, job.width, [&](int64_t i) { add_squares(x.load(i), i); });
    const float variance = sum_over_block(block, squares) / static_cast<float>(job.width);
    const float scale = 1 / std::sqrt(variance + static_cast<float>(job.eps));
    if (block.thread() == 0) {
      job.means[block.index()] = mean;
      job.scales[block.index()] = scale;
    }
    const auto write = [&](Quad v, int64_t i) {
      const Quad w = weight.load(i);
      const Quad b = bias.load(i);
      for (int k = 0; k < kQuad; ++k) v.at[k] = (v.at[k] - mean) * scale * w.at[k] + b.at[k];
      y.store(v, i);
    };
    for_kept_quads(block, job.width, [&](int64_t i, int n) { write(kept[n], i); });
    for_other_quads(block, job.width, [&](int64_t i) { write(x.load(i), i); });
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
  static constexpr int kLeastBlocks = 4;
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RmsNormJob& job, int64_t rows,
                                float* parts, bool is_shared) const {
    const int64_t width = job.width;
    float* const result = parts + block.index() * width;
    float* const sums = start_sums(block, width, is_shared, result);
    const int64_t begin = block.index() * kNormPart;
    CLEAVE_NOT_UNROLLED
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
    QuadWords<T> kept_x[kKept]{};
    QuadWords<T> kept_dy[kKept]{};
    for_kept_quads(block, job.width, [&](int64_t i, int n) {
      kept_x[n] = x.words(i);
      kept_dy[n] = dy.words(i);
    });
    float dot = 0;
    const auto add = [&](const Quad& v, const Quad& d, int64_t i) {
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad && i + k < job.width; ++k) {
        const float g = d.at[k] * (v.at[k] * scale);
        sums[i + k] += g;
        dot += g * (w.at[k] + job.offset);
      }
    };
    for_kept_quads(block, job.width,
                   [&](int64_t i, int n) { add(kept_x[n].numbers(), kept_dy[n].numbers(), i); });
    for_other_quads(block, job.width, [&](int64_t i) { add(x.load(i), dy.load(i), i); });
    const float mean = sum_over_block(block, dot) / static_cast<float>(job.width);
    const float kept = mean * scale;
    const auto write = [&](const Quad& v, Quad d, int64_t i) {
      const Quad w = weight.load(i);
      for (int k = 0; k < kQuad; ++k) {
        d.at[k] = scale * (d.at[k] * (w.at[k] + job.offset) - v.at[k] * kept);
      }
      dx.store(d, i);
    };
    for_kept_quads(block, job.width,
                   [&](int64_t i, int n) { write(kept_x[n].numbers(), kept_dy[n].numbers(), i); });
    for_other_quads(block, job.width, [&](int64_t i) { write(x.load(i), dy.load(i), i); });
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
