#pragma once
// Rotary positions and activations. The formulas are those of kernels/cpu/rows.cc.
#include <cmath>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// A quad of the first half of a head, and that of the second, for each thread.
template <class T>
struct RotaryKernel {
  template <class Block>
  CLEAVE_DEVICE void operator()(const Block& block, const RotaryJob& job) const {
    const int64_t quads = parts_of(job.half, kQuad);  // of a head
    const int64_t number = block.index() * block.threads() + block.thread();
    const int64_t of_head = number / quads;
    const int64_t i = kQuad * (number - of_head * quads);
    const int64_t row = of_head / job.heads;  // of batch and tokens
    const int64_t head = of_head - row * job.heads;
    const int64_t b = row / job.tokens;
    if (b >= job.batch) return;
    const int64_t t = row - b * job.tokens;
    const auto at = [&](const RotaryJob::Strides& strides) {
      return b * strides.batch + head * strides.head + t * strides.token + i;
    };
    const T* const x = static_cast<const T*>(job.x) + at(job.of_x);
    T* const y = static_cast<T*>(job.y) + at(job.of_y);
    const int64_t angle = (job.has_batch_angles ? row : t) * job.half + i;
    const int64_t count = job.half - i;
    Quad a = load(x, count);
    Quad other = load(x + job.half, count);
    const Quad c = load(static_cast<const T*>(job.cos) + angle, count);
    const Quad s = load(static_cast<const T*>(job.sin) + angle, count);
    for (int k = 0; k < kQuad; ++k) {
      const float sine = s.at[k] * job.direction;
      const float first = a.at[k] * c.at[k] - other.at[k] * sine;
      other.at[k] = other.at[k] * c.at[k] + a.at[k] * sine;
      a.at[k] = first;
    }
    store_quad(a, y, count, is_quad_aligned(y));
    store_quad(other, y + job.half, count, is_quad_aligned(y + job.half));
  }

 private:
  CLEAVE_DEVICE static Quad load(const T* from, int64_t count) {
    return load_quad(from, count, is_quad_aligned(from));
  }
};

/// A grid with a thread for each quad of a RotaryJob's heads.
constexpr Grid grid_of_rotary(const RotaryJob& job) {
  const int64_t threads = job.batch * job.tokens * job.heads * parts_of(job.half, kQuad);
  return {.blocks = parts_of(threads, kMostThreads), .threads = kMostThreads};
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
    for (int k = 0; k < kQuad; ++k) g.at[k] *= sigmoid_for<T>(g.at[k]) * u.at[k];
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
      const float s = sigmoid_for<T>(v);
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
    for (float& v : x.at) v *= sigmoid_for<T>(v * (kGeluSlope + kGeluCurve * v * v));
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
      const float s = sigmoid_for<T>(v * (kGeluSlope + kGeluCurve * square));
      x.at[k] = d.at[k] * (s + v * s * (1 - s) * (kGeluSlope + 3 * kGeluCurve * square));
    }
    at.store(x, job.dx);
  }
};

}  // namespace cleave::inline kernels
