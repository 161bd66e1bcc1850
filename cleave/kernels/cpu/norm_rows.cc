#include <cmath>

#include "cleave/kernels/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/norm_rows.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

/// weight + offset.
template <class T>
class NormWeight {
 public:
  explicit NormWeight(const RmsNormJob& job)
      : weight_(static_cast<const T*>(job.weight)), offset_(job.offset) {}
  [[nodiscard]] HWY_INLINE FloatVec at(int64_t i) const {
    return hn::Add(load(weight_ + i), hn::Set(kFloats, offset_));
  }
  [[nodiscard]] HWY_INLINE float one(int64_t i) const { return load_one(weight_ + i) + offset_; }

 private:
  const T* weight_;
  float offset_;
};

/// to = a + b for rows of `width` elements; `to` may be `a`.
template <class T>
void add_row(const T* a, const T* b, T* to, int64_t width) {
  sweep(
      width, [&](int64_t i) { store(hn::Add(load(a + i), load(b + i)), to + i); },
      [&](int64_t i) { store_one(load_one(a + i) + load_one(b + i), to + i); });
}

/// Row `r` that is normed: of job.x, or of the sum with job.added, which is written to job.sum.
template <class T, class Job>
const T* normed_row(const Job& job, int64_t r) {
  const T* x = static_cast<const T*>(job.x) + r * job.width;
  if (job.added == nullptr) return x;
  T* sum = static_cast<T*>(job.sum) + r * job.width;
  add_row(x, static_cast<const T*>(job.added) + r * job.width, sum, job.width);
  return sum;
}

/// Adds row `r` of job.dsum, if there is one, to that of job.dx.
template <class T, class Job>
void add_dsum(const Job& job, int64_t r) {
  if (job.dsum == nullptr) return;
  T* dx = static_cast<T*>(job.dx) + r * job.width;
  add_row<T>(dx, static_cast<const T*>(job.dsum) + r * job.width, dx, job.width);
}

template <class T>
void rms_norm(const RmsNormJob& job, int64_t begin, int64_t end) {
  const NormWeight<T> weight(job);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = normed_row<T>(job, r);
    T* y = static_cast<T*>(job.y) + r * job.width;
    FloatVec squares = hn::Zero(kFloats);
    float rest = 0;
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec v = load(x + i);
          squares = hn::MulAdd(v, v, squares);
        },
        [&](int64_t i) { rest += load_one(x + i) * load_one(x + i); });
    const double mean = (double{sum_of(squares)} + rest) / static_cast<double>(job.width);
    const auto scale = static_cast<float>(1 / std::sqrt(mean + job.eps));
    job.scales[r] = scale;
    const FloatVec factor = hn::Set(kFloats, scale);
    sweep(
        job.width,
        [&](int64_t i) { store(hn::Mul(hn::Mul(load(x + i), factor), weight.at(i)), y + i); },
        [&](int64_t i) { store_one(load_one(x + i) * scale * weight.one(i), y + i); });
  }
}

// With n = x scale and w = weight + offset: dx = scale (dy w - n mean(dy w n)), dw = sum of dy n.
template <class T>
void rms_norm_backward(const RmsNormJob& job, int64_t begin, int64_t end, float* dweight) {
  const NormWeight<T> weight(job);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(job.x) + r * job.width;
    const T* dy = static_cast<const T*>(job.dy) + r * job.width;
    T* dx = static_cast<T*>(job.dx) + r * job.width;
    const float scale = job.scales[r];
    const FloatVec factor = hn::Set(kFloats, scale);
    FloatVec dots = hn::Zero(kFloats);
    float rest = 0;
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec g = hn::Mul(load(dy + i), hn::Mul(load(x + i), factor));
          store(hn::Add(load(dweight + i), g), dweight + i);
          dots = hn::MulAdd(g, weight.at(i), dots);
        },
        [&](int64_t i) {
          const float g = load_one(dy + i) * load_one(x + i) * scale;
          dweight[i] += g;
          rest += g * weight.one(i);
        });
    const float mean = (sum_of(dots) + rest) / static_cast<float>(job.width);
    const FloatVec means = hn::Set(kFloats, mean);
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec n = hn::Mul(load(x + i), factor);
          const FloatVec g = hn::Mul(load(dy + i), weight.at(i));
          store(hn::Mul(factor, hn::NegMulAdd(n, means, g)), dx + i);
        },
        [&](int64_t i) {
          const float g = load_one(dy + i) * weight.one(i);
          store_one(scale * (g - load_one(x + i) * scale * mean), dx + i);
        });
    add_dsum<T>(job, r);
  }
}

template <class T>
void layer_norm(const LayerNormJob& job, int64_t begin, int64_t end) {
  const auto* weight = static_cast<const T*>(job.weight);
  const auto* bias = static_cast<const T*>(job.bias);
  const auto width = static_cast<double>(job.width);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = normed_row<T>(job, r);
    T* y = static_cast<T*>(job.y) + r * job.width;
    FloatVec sums = hn::Zero(kFloats);
    float rest = 0;
    sweep(
        job.width, [&](int64_t i) { sums = hn::Add(sums, load(x + i)); },
        [&](int64_t i) { rest += load_one(x + i); });
    const auto mean = static_cast<float>((double{sum_of(sums)} + rest) / width);
    const FloatVec center = hn::Set(kFloats, mean);
    FloatVec squares = hn::Zero(kFloats);
    float rest_squares = 0;
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec v = hn::Sub(load(x + i), center);
          squares = hn::MulAdd(v, v, squares);
        },
        [&](int64_t i) {
          const float v = load_one(x + i) - mean;
          rest_squares += v * v;
        });
    const double variance = (double{sum_of(squares)} + rest_squares) / width;
    const auto scale = static_cast<float>(1 / std::sqrt(variance + job.eps));
    job.means[r] = mean;
    job.scales[r] = scale;
    const FloatVec factor = hn::Set(kFloats, scale);
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec n = hn::Mul(hn::Sub(load(x + i), center), factor);
          store(hn::MulAdd(n, load(weight + i), load(bias + i)), y + i);
        },
        [&](int64_t i) {
          const float n = (load_one(x + i) - mean) * scale;
          store_one(n * load_one(weight + i) + load_one(bias + i), y + i);
        });
  }
}

// With n = (x - mean) scale and g = dy w: dx = scale (g - mean(g) - n mean(g n)), dw = sum of dy n,
// db = sum of dy.
template <class T>
void layer_norm_backward(const LayerNormJob& job, int64_t begin, int64_t end, float* dweight,
                         float* dbias) {
  const auto* weight = static_cast<const T*>(job.weight);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(job.x) + r * job.width;
    const T* dy = static_cast<const T*>(job.dy) + r * job.width;
    T* dx = static_cast<T*>(job.dx) + r * job.width;
    const float mean = job.means[r], scale = job.scales[r];
    const FloatVec center = hn::Set(kFloats, mean), factor = hn::Set(kFloats, scale);
    FloatVec sums = hn::Zero(kFloats), dots = sums;
    float rest_sum = 0, rest_dot = 0;
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec d = load(dy + i);
          const FloatVec dn = hn::Mul(d, hn::Mul(hn::Sub(load(x + i), center), factor));
          store(hn::Add(load(dweight + i), dn), dweight + i);
          store(hn::Add(load(dbias + i), d), dbias + i);
          sums = hn::MulAdd(d, load(weight + i), sums);
          dots = hn::MulAdd(dn, load(weight + i), dots);
        },
        [&](int64_t i) {
          const float d = load_one(dy + i);
          const float dn = d * (load_one(x + i) - mean) * scale;
          dweight[i] += dn;
          dbias[i] += d;
          rest_sum += d * load_one(weight + i);
          rest_dot += dn * load_one(weight + i);
        });
    const auto width = static_cast<float>(job.width);
    const float mean_g = (sum_of(sums) + rest_sum) / width;
    const float mean_gn = (sum_of(dots) + rest_dot) / width;
    const FloatVec of_g = hn::Set(kFloats, mean_g), of_gn = hn::Set(kFloats, mean_gn);
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec n = hn::Mul(hn::Sub(load(x + i), center), factor);
          const FloatVec g = hn::MulSub(load(dy + i), load(weight + i), of_g);
          store(hn::Mul(factor, hn::NegMulAdd(n, of_gn, g)), dx + i);
        },
        [&](int64_t i) {
          const float n = (load_one(x + i) - mean) * scale;
          const float g = load_one(dy + i) * load_one(weight + i) - mean_g;
          store_one(scale * (g - n * mean_gn), dx + i);
        });
    add_dsum<T>(job, r);
  }
}

void rms_norm_task(const RmsNormJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? rms_norm<uint16_t>(job, begin, end) : rms_norm<float>(job, begin, end);
}
void rms_norm_backward_task(const RmsNormJob& job, int64_t begin, int64_t end, float* dweight) {
  job.is_bf16 ? rms_norm_backward<uint16_t>(job, begin, end, dweight)
              : rms_norm_backward<float>(job, begin, end, dweight);
}
void layer_norm_task(const LayerNormJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? layer_norm<uint16_t>(job, begin, end) : layer_norm<float>(job, begin, end);
}
void layer_norm_backward_task(const LayerNormJob& job, int64_t begin, int64_t end, float* dweight,
                              float* dbias) {
  job.is_bf16 ? layer_norm_backward<uint16_t>(job, begin, end, dweight, dbias)
              : layer_norm_backward<float>(job, begin, end, dweight, dbias);
}
}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(rms_norm_task);
HWY_EXPORT(rms_norm_backward_task);
HWY_EXPORT(layer_norm_task);
HWY_EXPORT(layer_norm_backward_task);

void rms_norm_rows(const RmsNormJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(rms_norm_task)(job, begin, end);
}
void rms_norm_backward_rows(const RmsNormJob& job, int64_t begin, int64_t end, float* dweight) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_task)(job, begin, end, dweight);
}
void layer_norm_rows(const LayerNormJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(layer_norm_task)(job, begin, end);
}
void layer_norm_backward_rows(const LayerNormJob& job, int64_t begin, int64_t end, float* dweight,
                              float* dbias) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_task)(job, begin, end, dweight, dbias);
}
}  // namespace cleave::inline kernels
#endif
