#include "cleave/kernels/cpu/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cleave/kernels/cpu/rows.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h, which selects the instruction set.
#include "cleave/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::HWY_NAMESPACE {
namespace {

HWY_INLINE FloatVec sigmoid(FloatVec v) {
  const FloatVec one = hn::Set(kFloats, 1.0F);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(v))));
}
inline float sigmoid_one(float v) {
  return 1 / (1 + std::exp(-v));
}

template <class T>
void gate(const GateJob& job, int64_t begin, int64_t end) {
  const T* g = static_cast<const T*>(job.gate) + begin;
  const T* u = static_cast<const T*>(job.up) + begin;
  T* y = static_cast<T*>(job.y) + begin;
  sweep(
      end - begin,
      [&](int64_t i) {
        const FloatVec v = load(g + i);
        store(hn::Mul(hn::Mul(v, sigmoid(v)), load(u + i)), y + i);
      },
      [&](int64_t i) {
        const float v = load_one(g + i);
        store_one(v * sigmoid_one(v) * load_one(u + i), y + i);
      });
}

// d silu(v) / dv = s (1 + v (1 - s)) with s = sigmoid(v).
template <class T>
void gate_backward(const GateJob& job, int64_t begin, int64_t end) {
  const T* g = static_cast<const T*>(job.gate) + begin;
  const T* u = static_cast<const T*>(job.up) + begin;
  const T* dy = static_cast<const T*>(job.dy) + begin;
  T* dg = static_cast<T*>(job.dgate) + begin;
  T* du = static_cast<T*>(job.dup) + begin;
  sweep(
      end - begin,
      [&](int64_t i) {
        const FloatVec one = hn::Set(kFloats, 1.0F);
        const FloatVec v = load(g + i);
        const FloatVec s = sigmoid(v);
        const FloatVec d = load(dy + i);
        store(hn::Mul(d, hn::Mul(v, s)), du + i);
        const FloatVec slope = hn::Mul(s, hn::MulAdd(v, hn::Sub(one, s), one));
        store(hn::Mul(hn::Mul(d, load(u + i)), slope), dg + i);
      },
      [&](int64_t i) {
        const float v = load_one(g + i);
        const float s = sigmoid_one(v);
        const float d = load_one(dy + i);
        store_one(d * v * s, du + i);
        store_one(d * load_one(u + i) * s * (1 + v * (1 - s)), dg + i);
      });
}

// 2 u = v (kGeluLinear + kGeluCubic v^2).
constexpr float kGeluLinear = 1.5957691216057308F;  // 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F * kGeluLinear;

/// The slope of v sigmoid(w), w = 2 u: s + v s (1 - s) dw/dv.
inline float gelu_slope_one(float v) {
  const float s = sigmoid_one(v * (kGeluLinear + kGeluCubic * v * v));
  return s + v * s * (1 - s) * (kGeluLinear + 3 * kGeluCubic * v * v);
}

template <class T>
void gelu(const GeluJob& job, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(job.x) + begin;
  T* y = static_cast<T*>(job.y) + begin;
  const FloatVec linear = hn::Set(kFloats, kGeluLinear);
  const FloatVec cubic = hn::Set(kFloats, kGeluCubic);
  sweep(
      end - begin,
      [&](int64_t i) {
        const FloatVec v = load(x + i);
        const FloatVec w = hn::Mul(v, hn::MulAdd(cubic, hn::Mul(v, v), linear));
        store(hn::Mul(v, sigmoid(w)), y + i);
      },
      [&](int64_t i) {
        const float v = load_one(x + i);
        store_one(v * sigmoid_one(v * (kGeluLinear + kGeluCubic * v * v)), y + i);
      });
}

template <class T>
void gelu_backward(const GeluJob& job, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(job.x) + begin;
  const T* dy = static_cast<const T*>(job.dy) + begin;
  T* dx = static_cast<T*>(job.dx) + begin;
  const FloatVec linear = hn::Set(kFloats, kGeluLinear);
  const FloatVec cubic = hn::Set(kFloats, kGeluCubic);
  const FloatVec steeper = hn::Set(kFloats, 3 * kGeluCubic);
  const FloatVec one = hn::Set(kFloats, 1.0F);
  sweep(
      end - begin,
      [&](int64_t i) {
        const FloatVec v = load(x + i);
        const FloatVec square = hn::Mul(v, v);
        const FloatVec s = sigmoid(hn::Mul(v, hn::MulAdd(cubic, square, linear)));
        const FloatVec turn = hn::Mul(hn::Mul(v, s), hn::Sub(one, s));
        const FloatVec slope = hn::MulAdd(turn, hn::MulAdd(steeper, square, linear), s);
        store(hn::Mul(load(dy + i), slope), dx + i);
      },
      [&](int64_t i) { store_one(load_one(dy + i) * gelu_slope_one(load_one(x + i)), dx + i); });
}

template <class T>
void rotary(const RotaryRow& row, const T* x, int64_t x_stride, T* y, int64_t y_stride) {
  const auto* cos = static_cast<const T*>(row.cos);
  const auto* sin = static_cast<const T*>(row.sin);
  const FloatVec direction = hn::Set(kFloats, row.direction);
  const int64_t half = row.width / 2;
  for (int64_t h = 0; h < row.num_heads; ++h) {
    const T* in = x + h * x_stride;
    T* out = y + h * y_stride;
    sweep(
        half,
        [&](int64_t i) {
          const FloatVec a = load(in + i);
          const FloatVec b = load(in + half + i);
          const FloatVec c = load(cos + i);
          const FloatVec s = hn::Mul(load(sin + i), direction);
          store(hn::NegMulAdd(b, s, hn::Mul(a, c)), out + i);
          store(hn::MulAdd(a, s, hn::Mul(b, c)), out + half + i);
        },
        [&](int64_t i) {
          const float a = load_one(in + i);
          const float b = load_one(in + half + i);
          const float c = load_one(cos + i);
          const float s = load_one(sin + i) * row.direction;
          store_one(a * c - b * s, out + i);
          store_one(b * c + a * s, out + half + i);
        });
  }
}

template <class T>
void softmax_sums(const LogitsJob& job, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* z = static_cast<const T*>(job.logits) + r * job.width;
    FloatVec tops = hn::Set(kFloats, -std::numeric_limits<float>::infinity());
    float top = -std::numeric_limits<float>::infinity();
    sweep(
        job.width, [&](int64_t i) { tops = hn::Max(tops, load(z + i)); },
        [&](int64_t i) { top = std::max(top, load_one(z + i)); });
    top = std::max(top, hn::GetLane(hn::MaxOfLanes(kFloats, tops)));
    const float shift_one = top == -std::numeric_limits<float>::infinity() ? 0 : top;
    const FloatVec shift = hn::Set(kFloats, shift_one);
    FloatVec sums = hn::Zero(kFloats);
    float sum = 0;
    sweep(
        job.width, [&](int64_t i) { sums = hn::Add(sums, exp(hn::Sub(load(z + i), shift))); },
        [&](int64_t i) { sum += std::exp(load_one(z + i) - shift_one); });
    job.largest[r] = top;
    job.sums[r] = sum + sum_of(sums);
  }
}

template <class T>
void softmax_gradient(const LogitsGradientJob& job, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* z = static_cast<const T*>(job.logits) + r * job.width;
    T* d = static_cast<T*>(job.gradient) + r * job.width;
    if (job.factor[r] == 0) {
      std::fill(d, d + job.width, T{0});
      continue;
    }
    const FloatVec shift = hn::Set(kFloats, job.largest[r]);
    const FloatVec inverse = hn::Set(kFloats, 1 / job.sums[r]);
    const FloatVec factor = hn::Set(kFloats, job.factor[r]);
    const FloatVec spread = hn::Set(kFloats, job.spread);
    const auto one = [&](int64_t i, float taken) {
      const float p = std::exp(load_one(z + i) - job.largest[r]) / job.sums[r];
      store_one((p - job.spread - taken) * job.factor[r], d + i);
    };
    sweep(
        job.width,
        [&](int64_t i) {
          const FloatVec p = exp(hn::Sub(load(z + i), shift));
          store(hn::Mul(hn::MulSub(p, inverse, spread), factor), d + i);
        },
        [&](int64_t i) { one(i, 0); });
    if (job.target[r] >= 0) one(job.target[r], job.weight);
  }
}

void gelu_task(const GeluJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? gelu<uint16_t>(job, begin, end) : gelu<float>(job, begin, end);
}
void gelu_backward_task(const GeluJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? gelu_backward<uint16_t>(job, begin, end) : gelu_backward<float>(job, begin, end);
}
template <class T>
void sum(const SumJob& job, int64_t begin, int64_t end) {
  const T* from = static_cast<const T*>(job.sum);
  const auto at = [&](int64_t i) { return begin + i; };
  sweep(
      end - begin,
      [&](int64_t i) { store(hn::Add(load(from + at(i)), load(job.x + at(i))), job.y + at(i)); },
      [&](int64_t i) { job.y[at(i)] = load_one(from + at(i)) + load_one(job.x + at(i)); });
}
void sum_task(const SumJob& job, int64_t begin, int64_t end) {
  job.is_sum_bf16 ? sum<uint16_t>(job, begin, end) : sum<float>(job, begin, end);
}

void gate_task(const GateJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? gate<uint16_t>(job, begin, end) : gate<float>(job, begin, end);
}
void gate_backward_task(const GateJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? gate_backward<uint16_t>(job, begin, end) : gate_backward<float>(job, begin, end);
}
void rotary_task(const RotaryRow& row, const void* x, int64_t x_stride, void* y, int64_t y_stride) {
  if (row.is_bf16) {
    rotary(row, static_cast<const uint16_t*>(x), x_stride, static_cast<uint16_t*>(y), y_stride);
  } else {
    rotary(row, static_cast<const float*>(x), x_stride, static_cast<float*>(y), y_stride);
  }
}
void softmax_sums_task(const LogitsJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? softmax_sums<uint16_t>(job, begin, end) : softmax_sums<float>(job, begin, end);
}
using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;
constexpr Doubles kDoubles;

HWY_INLINE DoubleVec load_doubles(const float* from) {
  return hn::PromoteTo(kDoubles, hn::LoadU(hn::Rebind<float, Doubles>(), from));
}
HWY_INLINE DoubleVec load_doubles(const uint16_t* from) {
  const hn::Rebind<uint32_t, Doubles> words;
  const auto bits = hn::PromoteTo(words, hn::LoadU(hn::Rebind<uint16_t, Doubles>(), from));
  return hn::PromoteTo(kDoubles,
                       hn::BitCast(hn::Rebind<float, Doubles>(), hn::ShiftLeft<16>(bits)));
}

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kDoubles));
  // Four independent sums, because an addition has a latency of four cycles.
  DoubleVec a = hn::Zero(kDoubles), b = a, c = a, d = a;
  const auto add_square = [](DoubleVec v, DoubleVec& sum) { sum = hn::MulAdd(v, v, sum); };
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    add_square(load_doubles(x + i), a);
    add_square(load_doubles(x + i + lanes), b);
    add_square(load_doubles(x + i + 2 * lanes), c);
    add_square(load_doubles(x + i + 3 * lanes), d);
  }
  double sum = hn::GetLane(hn::SumOfLanes(kDoubles, hn::Add(hn::Add(a, b), hn::Add(c, d))));
  for (; i < count; ++i) sum += double{load_one(x + i)} * load_one(x + i);
  return sum;
}

double sum_of_squares_task(const void* x, bool is_bf16, int64_t begin, int64_t end) {
  return is_bf16 ? sum_of_squares(static_cast<const uint16_t*>(x) + begin, end - begin)
                 : sum_of_squares(static_cast<const float*>(x) + begin, end - begin);
}

float largest_of_row_task(const float* x, int64_t width) {
  // Bits of non-negative floats are ordered like the numbers; NaN is above all.
  const hn::RebindToUnsigned<Floats> words;
  auto tops = hn::Zero(words);
  uint32_t top = 0;
  sweep(
      width, [&](int64_t i) { tops = hn::Max(tops, hn::BitCast(words, hn::Abs(load(x + i)))); },
      [&](int64_t i) {
        uint32_t bits = 0;
        std::memcpy(&bits, x + i, sizeof bits);
        top = std::max(top, bits & 0x7FFFFFFFU);
      });
  top = std::max(top, hn::GetLane(hn::MaxOfLanes(words, tops)));
  float value = 0;
  std::memcpy(&value, &top, sizeof value);
  return value;
}

void int8_row_task(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to) {
  // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the lowest bits.
  constexpr float kMagic = 12582912.0F;
  const hn::RebindToUnsigned<Floats> words;
  const hn::Rebind<uint8_t, Floats> bytes;
  const FloatVec most = hn::Set(kFloats, 127.0F), least = hn::Set(kFloats, -127.0F);
  sweep(
      width,
      [&](int64_t i) {
        const FloatVec v = hn::Mul(load(x + i), hn::Set(kFloats, factor));
        const FloatVec near = hn::Add(hn::Max(hn::Min(v, most), least), hn::Set(kFloats, kMagic));
        const auto whole = hn::Add(hn::BitCast(words, near), hn::Set(words, 128));
        hn::StoreU(hn::TruncateTo(bytes, whole), bytes, to + i);
      },
      [&](int64_t i) {
        const float near = std::clamp(x[i] * factor, -127.0F, 127.0F) + kMagic;
        uint32_t bits = 0;
        std::memcpy(&bits, &near, sizeof bits);
        to[i] = static_cast<uint8_t>(bits + 128);
      });
  std::fill(to + width, to + padded, uint8_t{128});
}

void softmax_gradient_task(const LogitsGradientJob& job, int64_t begin, int64_t end) {
  job.is_bf16 ? softmax_gradient<uint16_t>(job, begin, end)
              : softmax_gradient<float>(job, begin, end);
}

}  // namespace
}  // namespace cleave::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::inline kernels {
HWY_EXPORT(gelu_task);
HWY_EXPORT(gelu_backward_task);
HWY_EXPORT(gate_task);
HWY_EXPORT(gate_backward_task);
HWY_EXPORT(rotary_task);
HWY_EXPORT(softmax_sums_task);
HWY_EXPORT(softmax_gradient_task);
HWY_EXPORT(sum_of_squares_task);
HWY_EXPORT(sum_task);
HWY_EXPORT(largest_of_row_task);
HWY_EXPORT(int8_row_task);

void gelu_range(const GeluJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(gelu_task)(job, begin, end);
}
void gelu_backward_range(const GeluJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_task)(job, begin, end);
}
void gate_range(const GateJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(gate_task)(job, begin, end);
}
void gate_backward_range(const GateJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(gate_backward_task)(job, begin, end);
}
void rotary_row(const RotaryRow& row, const void* x, int64_t x_stride, void* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(rotary_task)(row, x, x_stride, y, y_stride);
}
void softmax_sums_rows(const LogitsJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(softmax_sums_task)(job, begin, end);
}
void softmax_gradient_rows(const LogitsGradientJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_task)(job, begin, end);
}
void sum_range(const SumJob& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(sum_task)(job, begin, end);
}
float largest_of_row(const float* x, int64_t width) {
  return HWY_DYNAMIC_DISPATCH(largest_of_row_task)(x, width);
}
void int8_row(const float* x, int64_t width, int64_t padded, float factor, uint8_t* to) {
  HWY_DYNAMIC_DISPATCH(int8_row_task)(x, width, padded, factor, to);
}
double sum_of_squares_range(const void* x, bool is_bf16, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares_task)(x, is_bf16, begin, end);
}
}  // namespace cleave::inline kernels
#endif
