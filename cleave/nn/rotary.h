#pragma once
#include <ATen/core/Tensor.h>

#include "cleave/nn/rotary_options.h"

namespace cleave {

using at::Tensor;

/// Turns the dim pairs (i, i + K/2) of queries and keys by position * frequency(i).
/// Sources: arXiv:2104.09864; the llama3 scaling as in its config.json's rope_scaling.
class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options);

  /// Differentiable. x [B, H, T, K], positions [B or 1, T] or [T] int64, on any device (from the
  /// processor nothing waits for x's); the same shape out. Throws Error(kShape) when they do not
  /// fit.
  [[nodiscard]] Tensor apply(const Tensor& x, const Tensor& positions);

  /// Frequencies [K/2] in fp64, after scaling.
  [[nodiscard]] const Tensor& frequencies() const { return frequencies_; }

 private:
  void extend_tables(int64_t num_positions, const Tensor& like);
  Tensor frequencies_;  // [K/2] fp64
  Tensor cos_, sin_;    // [P, K/2] in the activation's type
};

}  // namespace cleave
