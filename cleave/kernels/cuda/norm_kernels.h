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

/// The row that a block norms: of job.x, or of the sum with job.added, which load() writes to
/// job.sum.
template <class T, class Job>
class NormedRow {
 public:
  /// Row `row` of the job's.
  CLEAVE_DEVICE NormedRow(const Job& job, int64_t row)
      : x_(static_cast<const T*>(job.x), row, job.width),
        added_(static_cast<const T*>(job.added != nullptr ? job.added : job.x), row, job.width),
        sum_(static_cast<T*>(job.added != nullptr ? job.sum : job.y), row, job.width),
        is_sum_(job.added != nullptr) {}
  /// The first read of a quad.
  CLEAVE_DEVICE Quad load(int64_t i) const {
    Quad v = x_.load(i);
    if (!is_sum_) return v;
    const Quad other = added_.load(i);
    for (int k = 0; k < kQuad; ++k) v.at[k] += other.at[k];
    const QuadWords<T> words = rounded<T>(v);
    sum_.store(words.numbers(), i);
    return words.numbers();
  }
  /// A later one, of the same thread.
  CLEAVE_DEVICE Quad reload(int64_t i) const { return is_sum_ ? sum_.load(i) : x_.load(i); }

 private:
  Row<const T> x_, added_;
  Row<T> sum_;
  bool is_sum_;
};

/// Adds a quad of job.dsum, if there is one, to a quad of dx.
template <class T, class Job>
CLEAVE_DEVICE void add_dsum(const Job& job, int64_t row, int64_t i, Quad& dx) {
  if (job.dsum == nullptr) return;
  const Quad other = Row<const T>(static_cast<const T*>(job.dsum), row, job.width).load(i);
  for (int k = 0; k < kQuad; ++k) dx.at[k] += other.at[k];
}

/// A block for each row.
template <class T>
struct RmsNormKernel {
  static constexpr int kLeastBlocks = 4;  // without it, registers are spilled on sm_100
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RmsNormJob& job) const {
    const NormedRow<T, RmsNormJob> x(job, block.index());
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
    for_other_quads(block, job.width, [&](int64_t i) { write(x.reload(i), i); });
  }
};

/// A block for each row.
template <class T>
struct LayerNormKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const LayerNormJob& job) const {
    const NormedRow<T, LayerNormJob> x(job, block.index());
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
    for_other_quads(block, job.width, [&](int64_t i) { add_squares(x.reload(i), i); });
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
    for_other_quads(block, job.width, [&](int64_t i) { write(x.reload(i), i); });
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

/// A block computes kNormPart rows. If the quads of the rows are aligned, a thread keeps its first
/// quads in registers. In bf16, it also loads those of the next row before it needs them; in fp32,
/// they would need too many registers.
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
    const int64_t end = begin + kNormPart < rows ? begin + kNormPart : rows;
    const Kept kept(block, job);
    constexpr bool kLoadsNext = sizeof(T) == sizeof(uint16_t);
    Words next;
    if (kLoadsNext) next = kept.load(job, begin);
    Sums both{.others = sums};
    CLEAVE_NOT_UNROLLED
    for (int64_t r = begin; r < end; ++r) {
      const Words own = kLoadsNext ? next : kept.load(job, r);
      if (kLoadsNext && r + 1 < end) next = kept.load(job, r + 1);
      of_row(block, job, r, kept, own, both);
    }
    kept.each([&](int64_t i, int n) {
      for (int k = 0; k < kQuad; ++k) sums[i + k] = both.kept[n].at[k];
    });
    store_sums(block, width, sums, result);
  }

 private:
  /// A thread's first quads of a row.
  struct Words {
    QuadWords<T> x[kKept]{}, dy[kKept]{};
  };
  /// The sums over rows of the thread's columns.
  struct Sums {
    Quad kept[kKept]{};  // of the first quads
    float* others = nullptr;
  };
  /// Which quads those are.
  class Kept {
   public:
    template <class Block>
    CLEAVE_DEVICE Kept(const Block& block, const RmsNormJob& job)
        : first_(kQuad * block.thread()), step_(kQuad * block.threads()) {
      const auto* const x = static_cast<const T*>(job.x);
      const auto* const dy = static_cast<const T*>(job.dy);
      const auto* const dx = static_cast<const T*>(job.dx);
      const auto* const weight = static_cast<const T*>(job.weight);
      const bool is_aligned = job.width % kQuad == 0 && is_quad_aligned(x) && is_quad_aligned(dy) &&
                              is_quad_aligned(dx) && is_quad_aligned(weight);
      end_ =  // NOLINTNEXTLINE(bugprone-implicit-widening*): a few thousand
          is_aligned ? static_cast<int>(job.width < kKept * step_ ? job.width : kKept * step_) : 0;
    }
    /// Calls work(i, n) for the n-th one, which begins at column i.
    template <class Work>
    CLEAVE_DEVICE void each(const Work& work) const {
      for (int n = 0; n < kKept; ++n) {
        const int i = first_ + n * step_;
        if (i < end_) work(i, n);
      }
    }
    /// Calls work(i) for the first column of each other quad of the thread.
    template <class Work>
    CLEAVE_DEVICE void each_other(int64_t width, const Work& work) const {
      CLEAVE_NOT_UNROLLED
      for (int64_t i = end_ == 0 ? first_ : first_ + kKept * step_; i < width; i += step_) work(i);
    }
    CLEAVE_DEVICE Words load(const RmsNormJob& job, int64_t r) const {
      const T* const x = static_cast<const T*>(job.x) + r * job.width;
      const T* const dy = static_cast<const T*>(job.dy) + r * job.width;
      Words words;
      each([&](int64_t i, int n) {
        words.x[n] = load_aligned<QuadWords<T>>(x + i);
        words.dy[n] = load_aligned<QuadWords<T>>(dy + i);
      });
      return words;
    }

   private:
    int first_, step_, end_;
  };

  template <class Block>
  CLEAVE_DEVICE static void of_row(const Block& block, const RmsNormJob& job, int64_t r,
                                   const Kept& kept, const Words& words, Sums& sums) {
    const Row<const T> x(static_cast<const T*>(job.x), r, job.width);
    const Row<const T> dy(static_cast<const T*>(job.dy), r, job.width);
    const Row<const T> weight(static_cast<const T*>(job.weight), 0, job.width);
    const Row<T> dx(static_cast<T*>(job.dx), r, job.width);
    const auto* const aligned_weight = static_cast<const T*>(job.weight);
    const float scale = job.scales[r];
    float dot = 0;
    const auto add = [&](const Quad& v, const Quad& d, const Quad& w, float* sum, int64_t left) {
      for (int k = 0; k < kQuad && k < left; ++k) {
        const float g = d.at[k] * (v.at[k] * scale);
        sum[k] += g;
        dot += g * (w.at[k] + job.offset);
      }
    };
    kept.each([&](int64_t i, int n) {
      const Quad w = load_aligned<QuadWords<T>>(aligned_weight + i).numbers();
      add(words.x[n].numbers(), words.dy[n].numbers(), w, sums.kept[n].at, kQuad);
    });
    kept.each_other(job.width, [&](int64_t i) {
      add(x.load(i), dy.load(i), weight.load(i), sums.others + i, job.width - i);
    });
    const float total = sum_in_slot(block, dot, static_cast<int>(r % 2));
    const float factor = total / static_cast<float>(job.width) * scale;
    const auto result = [&](const Quad& v, Quad d, const Quad& w) {
      for (int k = 0; k < kQuad; ++k) {
        d.at[k] = scale * (d.at[k] * (w.at[k] + job.offset) - v.at[k] * factor);
      }
      return d;
    };
    T* const aligned_dx = static_cast<T*>(job.dx) + r * job.width;
    kept.each([&](int64_t i, int n) {
      const Quad w = load_aligned<QuadWords<T>>(aligned_weight + i).numbers();
      Quad d = result(words.x[n].numbers(), words.dy[n].numbers(), w);
      add_dsum<T>(job, r, i, d);
      store_aligned(rounded<T>(d), aligned_dx + i);
    });
    kept.each_other(job.width, [&](int64_t i) {
      Quad d = result(x.load(i), dy.load(i), weight.load(i));
      add_dsum<T>(job, r, i, d);
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
      add_dsum<T>(job, r, i, d);
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
