#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"
#include "cleave/nn/layer_options.h"

namespace cleave::inline nn {

using at::Tensor;

/// cos and sin of position * frequency(i), [T, K/2] or [B or 1, T, K/2].
struct RotaryAngles {
  Tensor cos, sin;
};

/// Rotates the dim pairs (i, i + K/2) of queries or keys x [B, H, T, K]; result [B, H, T, K].
/// Differentiable. Throws Error(kShape) when the shapes do not fit.
Tensor apply_rotary(const Tensor& x, const RotaryAngles& angles);

/// Rotary position embedding (RoPE): tables of the angles position * frequency(i). Sources:
/// arXiv:2104.09864; yarn arXiv:2309.00071; longrope arXiv:2402.13753; llama3 scaling as in
/// rope_scaling of its config.json.
class Rotary {
 public:
  explicit Rotary(const RotaryOptions& options);

  /// The angles of positions [B or 1, T] or [T] int64, in the type and on the device of `like`. The
  /// positions may be on any device; on the CPU no device synchronization is needed. Throws
  /// Error(kShape) for positions of other shapes.
  [[nodiscard]] RotaryAngles angles(const Tensor& positions, const Tensor& like);
  /// The angles of T consecutive positions.
  [[nodiscard]] RotaryAngles angles(Range positions, const Tensor& like);

  /// Frequencies [K/2] in fp64, after scaling, for sequences of `num_tokens`.
  [[nodiscard]] const Tensor& frequencies(int64_t num_tokens = 1) const {
    return is_long(num_tokens) ? long_.frequencies : tables_.frequencies;
  }
  /// Whether sequences of `num_tokens` have the long factors of longrope.
  [[nodiscard]] bool is_long(int64_t num_tokens) const {
    return long_.frequencies.defined() && num_tokens > options_.original_positions;
  }

 private:
  struct Tables {
    Tensor frequencies;  // [K/2] fp64
    Tensor cos, sin;     // [P, K/2] in the activations' type
  };
  /// The tables for sequences of `num_positions`, which have at least as many rows.
  const Tables& extended(int64_t num_positions, const Tensor& like);

  RotaryOptions options_;
  Tables tables_, long_;          // long_: of longrope
  std::vector<Tables> outgrown_;  // on devices: recorded work still reads them
};

}  // namespace cleave::inline nn
