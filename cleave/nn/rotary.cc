#include "cleave/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/kernels.h"
#include "cleave/layout/node.h"

namespace cleave {
namespace {

double scaled(double frequency, const RotaryOptions& o) {
  using Scaling = RotaryOptions::Scaling;
  if (o.scaling == Scaling::kNone) return frequency;
  if (o.scaling == Scaling::kLinear) return frequency / o.factor;
  // llama3: long waves are stretched by `factor`, short ones kept, those in between interpolated.
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(o.original_positions);
  if (wavelength > original / o.low_freq_factor) return frequency / o.factor;
  if (wavelength < original / o.high_freq_factor) return frequency;
  const double smooth =
      (original / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1 - smooth) * frequency / o.factor + smooth * frequency;
}

/// (a, b) -> (a cos - b sin, b cos + a sin) for the two halves of the last dim.
Tensor rotate_halves(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, half);
  const Tensor b = x.narrow(-1, half, half);
  Tensor y = at::empty(x.sizes(), x.options());
  Tensor y_a = y.narrow(-1, 0, half);
  Tensor y_b = y.narrow(-1, half, half);
  at::mul_out(y_a, a, cos).addcmul_(b, sin, -1);
  at::mul_out(y_b, b, cos).addcmul_(a, sin);
  return y;
}

}  // namespace

Rotary::Rotary(const RotaryOptions& options) {
  CLEAVE_CHECK(options.head_dim > 0 && options.head_dim % 2 == 0, Code::kShape,
               "rotary positions rotate pairs of dims; head_dim=", options.head_dim,
               " must be even");
  std::vector<double> f;
  for (int64_t i = 0; i < options.head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(options.head_dim);
    f.push_back(scaled(std::pow(options.theta, -exponent), options));
  }
  frequencies_ = at::tensor(f, at::kDouble);
}

void Rotary::extend_tables(int64_t num_positions, const Tensor& like) {
  if (cos_.defined() && cos_.size(0) >= num_positions && cos_.scalar_type() == like.scalar_type() &&
      cos_.device() == like.device()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const int64_t had = cos_.defined() ? cos_.size(0) : 128;
  const int64_t rows =
      num_positions > had || !cos_.defined() ? std::max(num_positions, 2 * had) : had;
  const Tensor angles = at::outer(at::arange(rows, at::kDouble), frequencies_);
  cos_ = angles.cos().to(like.options());
  sin_ = angles.sin().to(like.options());
}

RotaryAngles Rotary::angles(const Tensor& positions, const Tensor& like) {
  const auto rows = positions.sizes();
  CLEAVE_CHECK(!rows.empty() && rows.size() <= 2, Code::kShape, "rotary: positions ", rows,
               "; expected [B or 1, T] or [T]");
  if (positions.numel() == 0) return angles(Range{0, 0}, like);
  // A dry run has no position values.
  extend_tables(positions.is_meta() ? 1 : positions.max().item<int64_t>() + 1, like);
  const Tensor at_positions = positions.flatten().to(like.device());
  auto shape = rows.vec();
  shape.push_back(cos_.size(1));
  return {.cos = cos_.index_select(0, at_positions).view(shape),
          .sin = sin_.index_select(0, at_positions).view(shape)};
}

RotaryAngles Rotary::angles(Range positions, const Tensor& like) {
  extend_tables(positions.end, like);
  return {.cos = cos_.narrow(0, positions.begin, positions.size()),
          .sin = sin_.narrow(0, positions.begin, positions.size())};
}

Tensor apply_rotary(const Tensor& x, const RotaryAngles& angles) {
  Tensor cos = angles.cos;
  Tensor sin = angles.sin;
  const auto rows = cos.sizes();
  const size_t dims = rows.size();
  CLEAVE_CHECK(x.dim() == 4 && dims >= 2 && dims <= 3 && x.size(3) == 2 * rows[dims - 1] &&
                   rows[dims - 2] == x.size(2) &&
                   (dims == 2 || rows[0] == 1 || rows[0] == x.size(0)),
               Code::kShape, "rotary: x ", x.sizes(), ", angles ", rows,
               "; expected [B, H, T, K] and [B or 1, T, K/2] or [T, K/2]");
  if (x.numel() == 0) return x;
  if (is_on(Kernel::kRotary) && takes_fused({x, cos})) return fused_rotary(x, cos, sin);
  if (dims == 3) {  // [B, T, K/2] -> [B, 1, T, K/2]
    cos = cos.unsqueeze(1);
    sin = sin.unsqueeze(1);
  }
  return differentiable(
      "rotary", x, [&](const Tensor& t) { return rotate_halves(t, cos, sin); },
      [cos, sin](const Tensor& g) { return rotate_halves(g, cos, -sin); });
}

}  // namespace cleave
