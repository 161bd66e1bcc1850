#pragma once
// Rotary positions and activations. The formulas are those of kernels/cpu/rows.cc.
#include <cmath>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// A block for each token.
template <class T>
struct RotaryKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RotaryJob& job) const {
    const int64_t b = block.index() / job.tokens;
    const int64_t t = block.index() - b * job.tokens;
    const T* const x = static_cast<const T*>(job.x) + b * job.of_x.batch + t * job.of_x.token;
    T* const y = static_cast<T*>(job.y) + b * job.of_y.batch + t * job.of_y.token;
    const int64_t row = job.has_batch_angles ? block.index() : t;
    const T* const cosines = static_cast<const T*>(job.cos) + row * job.half;
    const T* const sines = static_cast<const T*>(job.sin) + row * job.half;
    const auto quads = static_cast<int>(parts_of(job.half, kQuad));  // of a head
    const int total = static_cast<int>(job.heads) * quads;
    for (int g = block.thread(); g < total; g += block.threads()) {
      const int head = g / quads;
      const int64_t i = int64_t{kQuad} * (g - head * quads);
      const T* const from = x + head * job.of_x.head + i;
      T* const to = y + head * job.of_y.head + i;
      const int64_t count = job.half - i;
      Quad a = load(from, count);
      Quad other = load(from + job.half, count);
      const Quad c = load(cosines + i, count);
      const Quad s = load(sines + i, count);
      for (int k = 0; k < kQuad; ++k) {
        const float sine = s.at[k] * job.direction;
        const float first = a.at[k] * c.at[k] - other.at[k] * sine;
        other.at[k] = other.at[k] * c.at[k] + a.at[k] * sine;
        a.at[k] = first;
      }
      store_quad(a, to, count, is_quad_aligned(to));
      store_quad(other, to + job.half, count, is_quad_aligned(to + job.half));
    }
  }

 private:
  CLEAVE_DEVICE static Quad load(const T* from, int64_t count) {
    return load_quad(from, count, is_quad_aligned(from));
  }
};

/// 1 / (1 + e^-v).
CLEAVE_DEVICE float sigmoid_of(float v) {
  return 1 / (1 + std::exp(-v));
}

/// The quads of a flat array; each thread has one.
template <class T>
struct FlatQuad {
  template <class Block>
  CLEAVE_DEVICE FlatQuad(const Block& block, int64_t size)
      : begin(kQuad * (block.index() * block.threads() + block.thread())), count(size - begin) {}
  CLEAVE_DEVICE Quad load(const void* data) const {
    const auto* from = static_cast<const T*>(data);
    return load_quad(from + begin, count, is_quad_aligned(from));
  }
  CLEAVE_DEVICE void store(const Quad& quad, void* data) const {
    auto* to = static_cast<T*>(data);
    store_quad(quad, to + begin, count, is_quad_aligned(to));
  }
  int64_t begin;
  int64_t count;  ///< of elements that are left; 0 or less: none
};

/// silu(gate) up.
template <class T>
struct GateKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const GateJob& job, int64_t size) const {
    const FlatQuad<T> at(block, size);
    if (at.count <= 0) return;
    Quad g = at.load(job.gate);
    const Quad u = at.load(job.up);
    for (int k = 0; k < kQuad; ++k) g.at[k] *= sigmoid_of(g.at[k]) * u.at[k];
    at.store(g, job.y);
  }
};

/// The slope of silu(v) is s (1 + v (1 - s)) with s = sigmoid(v).
template <class T>
struct GateBackwardKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const GateJob& job, int64_t size) const {
    const FlatQuad<T> at(block, size);
    if (at.count <= 0) return;
    Quad g = at.load(job.gate);
    Quad u = at.load(job.up);
    const Quad d = at.load(job.dy);
    for (int k = 0; k < kQuad; ++k) {
      const float v = g.at[k];
      const float s = sigmoid_of(v);
      g.at[k] = d.at[k] * u.at[k] * (s * (1 + v * (1 - s)));
      u.at[k] = d.at[k] * (v * s);
    }
    at.store(g, job.dgate);
    at.store(u, job.dup);
  }
};

/// GELU is v sigmoid(w) with w = v (kGeluSlope + kGeluCurve v^2).
inline constexpr float kGeluSlope = 1.5957691216057308F;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCurve = 0.044715F * kGeluSlope;

/// v sigmoid(w).
template <class T>
struct GeluKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const GeluJob& job, int64_t size) const {
    const FlatQuad<T> at(block, size);
    if (at.count <= 0) return;
    Quad x = at.load(job.x);
    for (float& v : x.at) v *= sigmoid_of(v * (kGeluSlope + kGeluCurve * v * v));
    at.store(x, job.y);
  }
};

/// The slope is s + v s (1 - s) dw/dv.
template <class T>
struct GeluBackwardKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const GeluJob& job, int64_t size) const {
    const FlatQuad<T> at(block, size);
    if (at.count <= 0) return;
    Quad x = at.load(job.x);
    const Quad d = at.load(job.dy);
    for (int k = 0; k < kQuad; ++k) {
      const float v = x.at[k];
      const float square = v * v;
      const float s = sigmoid_of(v * (kGeluSlope + kGeluCurve * square));
      x.at[k] = d.at[k] * (s + v * s * (1 - s) * (kGeluSlope + 3 * kGeluCurve * square));
    }
    at.store(x, job.dx);
  }
};

}  // namespace cleave::inline kernels
