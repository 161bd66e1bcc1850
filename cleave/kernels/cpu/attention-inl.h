// Included once per instruction set, inside what hwy/foreach_target.h repeats.
#if defined(CLEAVE_KERNELS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_ATTENTION_INL_H
#undef CLEAVE_KERNELS_ATTENTION_INL_H
#else
/// Toggled, so that each instruction set reads the file once.
#define CLEAVE_KERNELS_ATTENTION_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/kernels/cpu/attention_rows.h"
#include "cleave/kernels/cpu/simd-inl.h"

/// What follows is compiled for one instruction set.
HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// Rows of queries whose scores exist at once.
inline constexpr int64_t kRows = 48;

template <class T>
const T* head(const HeadsView& view, int64_t batch, int64_t h) {
  return static_cast<const T*>(view.data) + batch * view.of_batch + h * view.of_head;
}
template <class T>
T* head_to_write(const HeadsView& view, int64_t batch, int64_t h) {
  return static_cast<T*>(view.data) + batch * view.of_batch + h * view.of_head;
}

/// [rows, width] as fp32, times `scale`.
template <class T>
void pack(const T* from, int64_t of_row, int64_t rows, int64_t width, float scale, float* to) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += lanes) {
      store(hn::Mul(load(from + r * of_row + i), factor), to + r * width + i);
    }
  }
}

/// The transpose, [width, ld] with zeros from `rows` to ld.
template <class T>
void pack_transposed(const T* from, int64_t of_row, int64_t rows, int64_t width, int64_t ld,
                     float* to) {
  constexpr int64_t kBlock = 16;  // of rows: so many lines are written by turns
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(rows, begin + kBlock);
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t r = begin; r < end; ++r) to[i * ld + r] = load_one(from + r * of_row + i);
    }
  }
  for (int64_t i = 0; i < width; ++i) std::fill(to + i * ld + rows, to + (i + 1) * ld, 0.0F);
}

/// Writes rows of fp32, times `scale`.
template <class T>
void unpack(const float* from, int64_t rows, int64_t width, float scale, T* to, int64_t of_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += lanes) {
      store(hn::Mul(load(from + r * width + i), factor), to + r * of_row + i);
    }
  }
}

/// Scores that may not be seen become -infinity; [begin, end) of the row is real, the rest up to
/// `columns` is padding.
class Mask {
 public:
  Mask(const AttentionJob& job, int64_t batch) : job_(job) {
    if (job.key_mask != nullptr) seen_ = job.key_mask + batch * job.num_keys;
  }
  /// Keys that rows up to `query` can reach.
  [[nodiscard]] int64_t reach(int64_t query) const {
    return job_.causal ? query + 1 + job_.num_keys - job_.num_queries : job_.num_keys;
  }
  void apply(float* scores, int64_t query, int64_t columns) const {
    const int64_t end = reach(query);
    std::fill(scores + end, scores + columns, kHidden);
    if (seen_ == nullptr) return;
    bool any = false;
    for (int64_t s = 0; s < end; ++s) any = any || seen_[s];
    const int64_t own = query + job_.num_keys - job_.num_queries;
    for (int64_t s = 0; s < end; ++s) {
      if (!seen_[s] && (any || s != own)) scores[s] = kHidden;
    }
  }
  static constexpr float kHidden = -std::numeric_limits<float>::infinity();

 private:
  const AttentionJob& job_;
  const bool* seen_ = nullptr;
};

/// exp(scores - shift) in place, and their sum.
HWY_INLINE float exponentials(float* scores, int64_t columns, float shift) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec subtracted = hn::Set(kFloats, shift);
  FloatVec sums = hn::Zero(kFloats);
  for (int64_t s = 0; s < columns; s += lanes) {
    const FloatVec e = exp(hn::Sub(load(scores + s), subtracted));
    sums = hn::Add(sums, e);
    store(e, scores + s);
  }
  return hn::GetLane(hn::SumOfLanes(kFloats, sums));
}

HWY_INLINE float largest(const float* scores, int64_t columns) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  FloatVec most = load(scores);
  for (int64_t s = lanes; s < columns; s += lanes) most = hn::Max(most, load(scores + s));
  return hn::GetLane(hn::MaxOfLanes(kFloats, most));
}

/// What the tasks of one call share in shape, and their scratch memory, aligned.
struct Sizes {
  explicit Sizes(const AttentionJob& job)
      : keys(static_cast<int64_t>(hwy::RoundUpTo(static_cast<size_t>(job.num_keys), 16))),
        width(job.width) {}
  int64_t keys;  // rounded up to whole vectors
  int64_t width;
};

class Scratch {
 public:
  explicit Scratch(int64_t floats) : memory_(static_cast<size_t>(floats) + 128) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    next_ = memory_.data() + (hwy::RoundUpTo(at, 64) - at) / sizeof(float);
  }
  float* take(int64_t floats) {
    float* taken = next_;
    next_ += hwy::RoundUpTo(static_cast<size_t>(floats), 16);
    return taken;
  }

 private:
  std::vector<float> memory_;
  float* next_;
};

inline int64_t columns_of(const Mask& mask, const Sizes& sizes, int64_t last_query) {
  const auto columns = hwy::RoundUpTo(static_cast<size_t>(mask.reach(last_query)), 16);
  return std::min(sizes.keys, static_cast<int64_t>(columns));
}

inline float scale_of(const AttentionJob& job) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(job.width)));
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
/// The end of what HWY_BEFORE_NAMESPACE began.
HWY_AFTER_NAMESPACE();
#endif
