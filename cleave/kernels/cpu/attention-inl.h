// Included once per instruction set by hwy/foreach_target.h.
#if defined(CLEAVE_KERNELS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CLEAVE_KERNELS_ATTENTION_INL_H
#undef CLEAVE_KERNELS_ATTENTION_INL_H
#else
/// Toggled include guard: each instruction set includes the file once.
#define CLEAVE_KERNELS_ATTENTION_INL_H
#endif

#include <algorithm>
#include <limits>
#include <vector>

#include "cleave/kernels/cpu/attention_rows.h"
#include "cleave/kernels/cpu/dropout-inl.h"
#include "cleave/kernels/cpu/simd-inl.h"

/// Compiled for one instruction set from here.
HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// Queries whose scores are held at the same time.
inline constexpr int64_t kRows = kQueryBlock;

template <class T>
const T* head(const HeadsView& view, int64_t batch, int64_t h) {
  return static_cast<const T*>(view.data) + batch * view.batch_stride + h * view.head_stride;
}
template <class T>
T* head_to_write(const HeadsView& view, int64_t batch, int64_t h) {
  return static_cast<T*>(view.data) + batch * view.batch_stride + h * view.head_stride;
}

/// Copies [rows, width] as fp32, times `scale`.
template <class T>
void pack(const T* from, int64_t row_stride, int64_t rows, int64_t width, float scale, float* to) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += lanes) {
      store(hn::Mul(load(from + r * row_stride + i), factor), to + r * width + i);
    }
  }
}

/// Copies the transpose [width, ld] as fp32, with zeros in columns `rows` to ld.
template <class T>
void pack_transposed(const T* from, int64_t row_stride, int64_t rows, int64_t width, int64_t ld,
                     float* to) {
  constexpr int64_t kBlock = 16;  // rows per block, so that few cache lines are written in turn
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(rows, begin + kBlock);
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t r = begin; r < end; ++r) to[i * ld + r] = load_one(from + r * row_stride + i);
    }
  }
  for (int64_t i = 0; i < width; ++i) std::fill(to + i * ld + rows, to + (i + 1) * ld, 0.0F);
}

/// Writes fp32 rows, times `scale`, as T.
template <class T>
void unpack(const float* from, int64_t rows, int64_t width, float scale, T* to,
            int64_t row_stride) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += lanes) {
      store(hn::Mul(load(from + r * width + i), factor), to + r * row_stride + i);
    }
  }
}

/// Calls work(head, first query) for the blocks of queries of some parts.
template <class Work>
void for_each_block(const AttentionJob& job, const AttentionParts& parts, const Work& work) {
  int64_t block = 0;
  for (int64_t h = 0; h < job.num_heads; ++h) {
    if (job.kv_head[h] != parts.kv_head) continue;
    for (int64_t begin = 0; begin < job.num_queries; begin += kRows, ++block) {
      const int64_t part = block % job.num_parts;
      if (part >= parts.begin && part < parts.end) work(h, begin);
    }
  }
}

/// Sums of the gradients of a KV head's keys and values: `size` numbers each.
struct KvSums {
  float *dk, *dv;
  int64_t size;
};

/// Calls block(head, first query) for the blocks of queries of some parts of backward, with the
/// sums of the gradients of keys and values, [S, K] each. Writes each part's sums, those of the
/// keys times `scale`.
template <class T, class Block>
void for_each_backward_part(const AttentionJob& job, const AttentionParts& parts, float scale,
                            KvSums sums, const Block& block) {
  const auto write = [&](const float* from, float factor, const HeadsView& view, int64_t part) {
    if (job.num_parts == 1) {
      T* to = head_to_write<T>(view, parts.batch, parts.kv_head);
      return unpack(from, job.num_keys, job.width, factor, to, view.row_stride);
    }
    float* to = head_to_write<float>(view, parts.batch, parts.kv_head * job.num_parts + part);
    unpack(from, job.num_keys, job.width, factor, to, view.row_stride);
  };
  for (int64_t part = parts.begin; part < parts.end; ++part) {
    std::fill(sums.dk, sums.dk + sums.size, 0.0F);
    std::fill(sums.dv, sums.dv + sums.size, 0.0F);
    for_each_block(job, {parts.batch, parts.kv_head, part, part + 1}, block);
    write(sums.dk, scale, job.dk, part);
    write(sums.dv, 1, job.dv, part);
  }
}

/// Columns of the scores that a block of queries computes: multiples of 16.
struct Columns {
  int64_t begin, end;
  [[nodiscard]] int64_t size() const { return end - begin; }
};

/// Sets masked and padding scores of a row to -infinity. Rows begin at key 0.
class Mask {
 public:
  Mask(const AttentionJob& job, int64_t batch) : job_(job) {
    if (job.key_mask != nullptr) seen_ = job.key_mask + batch * job.num_keys;
    if (job.first_key != nullptr) first_key_ = job.first_key + batch * job.num_queries;
  }
  /// Number of keys that queries up to `query` may attend to under the causal mask.
  [[nodiscard]] int64_t reach(int64_t query) const {
    return job_.causal ? query + 1 + job_.num_keys - job_.num_queries : job_.num_keys;
  }
  /// The first key that `query` may attend to.
  [[nodiscard]] int64_t first(int64_t query) const {
    const int64_t near = job_.window == 0 ? 0 : std::max<int64_t>(0, reach(query) - job_.window);
    return first_key_ == nullptr ? near : std::max(near, first_key_[query]);
  }
  /// The first key that any of `rows` queries from `query` on may attend to.
  [[nodiscard]] int64_t first_of(int64_t query, int64_t rows) const {
    int64_t least = first(query);
    for (int64_t r = 1; r < rows; ++r) least = std::min(least, first(query + r));
    return least;
  }
  void apply(float* scores, int64_t query, Columns columns) const {
    const int64_t begin = first(query);
    const int64_t end = reach(query);
    std::fill(scores + columns.begin, scores + begin, kHidden);
    std::fill(scores + end, scores + columns.end, kHidden);
    if (seen_ == nullptr) return;
    bool any = false;
    for (int64_t s = begin; s < end; ++s) any = any || seen_[s];
    const int64_t own = query + job_.num_keys - job_.num_queries;
    for (int64_t s = begin; s < end; ++s) {
      if (!seen_[s] && (any || s != own)) scores[s] = kHidden;
    }
  }
  static constexpr float kHidden = -std::numeric_limits<float>::infinity();

 private:
  const AttentionJob& job_;
  const bool* seen_ = nullptr;
  const int64_t* first_key_ = nullptr;
};

/// scores = cap tanh(scores / cap) in place. `slopes` receives the derivative, 1 - tanh^2, unless
/// null.
HWY_INLINE void cap_scores(float* scores, int64_t columns, float cap, float* slopes) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec factor = hn::Set(kFloats, cap);
  const FloatVec inverse = hn::Set(kFloats, 1 / cap);
  for (int64_t s = 0; s < columns; s += lanes) {
    const FloatVec t = tanh(hn::Mul(load(scores + s), inverse));
    store(hn::Mul(t, factor), scores + s);
    if (slopes != nullptr) store(hn::NegMulAdd(t, t, hn::Set(kFloats, 1.0F)), slopes + s);
  }
}

/// row *= factors, element-wise.
HWY_INLINE void multiply_row(const float* factors, int64_t columns, float* row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t s = 0; s < columns; s += lanes) {
    store(hn::Mul(load(row + s), load(factors + s)), row + s);
  }
}

/// What dropout multiplies the probabilities of a block of rows with.
class KeptProbabilities {
 public:
  /// `memory` has floats() floats.
  KeptProbabilities(const AttentionJob& job, int64_t batch, float* memory)
      : job_(job), batch_(batch), memory_(memory) {}
  static int64_t floats(const AttentionJob& job, int64_t keys) {
    return job.dropout.p > 0 ? keys + kFactorMargin : 0;
  }
  [[nodiscard]] bool drops() const { return job_.dropout.p > 0; }
  /// The factors of a row's probabilities from key `first` on, until the next call.
  [[nodiscard]] const float* row(int64_t head, int64_t query, int64_t first, int64_t count) const {
    const AttentionDropout& d = job_.dropout;
    const int64_t index =
        ((d.first_sample + batch_) * d.num_heads + d.first_head + head) * job_.num_queries + query;
    const KeepStream stream{d.key, d.step, static_cast<float>(d.p),
                            static_cast<float>(1 / (1 - d.p))};
    return keep_factors(stream, static_cast<uint64_t>(index * job_.num_keys + first), count,
                        memory_);
  }

 private:
  const AttentionJob& job_;
  int64_t batch_;
  float* memory_;
};

/// Divides a row of exponentials by their sum, which makes them the probabilities p, and turns
/// `ds`, the gradient of these, into that of the scores, p (ds - sum of p ds).
///
/// FlashAttention uses exp(score - log-sum-exp) as p, and dout out as the sum. If one key has
/// nearly all of p, the two terms cancel and only rounding errors remain: those of a large
/// log-sum-exp and of `out`. Here p adds up to 1, and both terms have the same rounding.
HWY_INLINE void score_gradients(float sum, int64_t columns, float* p, float* ds) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const FloatVec inverse = hn::Set(kFloats, 1 / sum);
  FloatVec products = hn::Zero(kFloats);
  for (int64_t s = 0; s < columns; s += lanes) {
    const FloatVec probabilities = hn::Mul(load(p + s), inverse);
    store(probabilities, p + s);
    products = hn::MulAdd(probabilities, load(ds + s), products);
  }
  const FloatVec delta = hn::SumOfLanes(kFloats, products);
  for (int64_t s = 0; s < columns; s += lanes) {
    store(hn::Mul(load(p + s), hn::Sub(load(ds + s), delta)), ds + s);
  }
}

/// scores = exp(scores - shift) in place; returns their sum.
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

/// Sizes that all tasks of one call share.
struct Sizes {
  explicit Sizes(const AttentionJob& job)
      : keys(static_cast<int64_t>(hwy::RoundUpTo(static_cast<size_t>(job.num_keys), 16))),
        width(job.width) {}
  int64_t keys;  // rounded up to whole vectors
  int64_t width;
};

/// Aligned scratch memory of one task.
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

/// For the queries from `begin` on, `rows` of them.
inline Columns columns_of(const Mask& mask, const Sizes& sizes, int64_t begin, int64_t rows) {
  const auto end = hwy::RoundUpTo(static_cast<size_t>(mask.reach(begin + rows - 1)), 16);
  return {.begin = mask.first_of(begin, rows) / 16 * 16,
          .end = std::min(sizes.keys, static_cast<int64_t>(end))};
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
/// Ends HWY_BEFORE_NAMESPACE.
HWY_AFTER_NAMESPACE();
#endif
