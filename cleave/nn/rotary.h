#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"
#include "cleave/nn/rotary_options.h"

namespace cleave {

using at::Tensor;

/// cos and sin of position * frequency(i): [T, K/2], or [B or 1, T, K/2].
struct RotaryAngles {
  Tensor cos, sin;
};

/// Turns the dim pairs (i, i + K/2) of x [B, H, T, K], a query or a key; the same shape out.
/// Differentiable. Throws Error(kShape) when they do not fit.
Tensor turned_by(const Tensor& x, const RotaryAngles& angles);

/// The angles by which rotary positions turn the dim pairs (i, i + K/2) of queries and keys by
/// position * frequency(i). Sources: arXiv:2104.09864; the llama3 scaling as in its config.json's
/// rope_scaling.
class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options);

  /// The angles of positions [B or 1, T] or [T] int64, on any device (from the processor nothing
  /// waits for that of `like`); in the type and on the device of `like`. Throws Error(kShape) for
  /// positions of other shapes.
  [[nodiscard]] RotaryAngles angles(const Tensor& positions, const Tensor& like);
  /// Those of T positions one after the other.
  [[nodiscard]] RotaryAngles angles(Range positions, const Tensor& like);

  /// Frequencies [K/2] in fp64, after scaling.
  [[nodiscard]] const Tensor& frequencies() const { return frequencies_; }

 private:
  void extend_tables(int64_t num_positions, const Tensor& like);
  Tensor frequencies_;  // [K/2] fp64
  Tensor cos_, sin_;    // [P, K/2] in the activation's type
};

}  // namespace cleave
