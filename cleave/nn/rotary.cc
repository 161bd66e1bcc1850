#include "cleave/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/fused.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {
namespace {

/// yarn: frequencies of many rotations are kept, those of few divided by `factor`, linear in the
/// index of the dim pair between the bounds.
double yarn_scaled(double frequency, int64_t pair, const RotaryOptions& o) {
  const auto dims = static_cast<double>(o.head_dim);
  const auto bound = [&](double rotations) {  // the pair with this number of rotations
    const double positions = static_cast<double>(o.original_positions) / rotations;
    return dims * std::log(positions / (2 * std::numbers::pi)) / (2 * std::log(o.theta));
  };
  double low = bound(o.beta_fast);
  double high = bound(o.beta_slow);
  if (o.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  const double divided = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / o.factor * divided + frequency * (1 - divided);
}

double llama3_scaled(double frequency, const RotaryOptions& o) {
  // llama3: long waves are stretched by `factor`, short ones kept, those in between interpolated.
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(o.original_positions);
  if (wavelength > original / o.low_freq_factor) return frequency / o.factor;
  if (wavelength < original / o.high_freq_factor) return frequency;
  const double smooth =
      (original / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1 - smooth) * frequency / o.factor + smooth * frequency;
}

double scaled(double frequency, int64_t pair, const RotaryOptions& o) {
  using Scaling = RotaryOptions::Scaling;
  switch (o.scaling) {
    case Scaling::kNone:
      return frequency;
    case Scaling::kLinear:
      return frequency / o.factor;
    case Scaling::kLlama3:
      return llama3_scaled(frequency, o);
    case Scaling::kYarn:
      return yarn_scaled(frequency, pair, o);
    case Scaling::kLongRope:
      return frequency / o.short_factors[static_cast<size_t>(pair)];
  }
  CLEAVE_BUG("unknown rotary scaling ", static_cast<int>(o.scaling));
}

/// (a, b) -> (a cos - b sin, b cos + a sin) for the two halves of the last dim.
Tensor rotate_halves(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, half);
  const Tensor b = x.narrow(-1, half, half);
  Tensor y = at::empty_like(x);  // the strides of x, which attention's output gets too
  Tensor y_a = y.narrow(-1, 0, half);
  Tensor y_b = y.narrow(-1, half, half);
  at::mul_out(y_a, a, cos).addcmul_(b, sin, -1);
  at::mul_out(y_b, b, cos).addcmul_(a, sin);
  return y;
}

}  // namespace

Rotary::Rotary(const RotaryOptions& options) : options_(options) {
  CLEAVE_CHECK(options.head_dim > 0 && options.head_dim % 2 == 0, Code::kShape,
               "rotary positions rotate pairs of dims; head_dim=", options.head_dim,
               " must be even");
  const bool is_longrope = options.scaling == RotaryOptions::Scaling::kLongRope;
  const auto pairs = static_cast<size_t>(options.head_dim / 2);
  CLEAVE_CHECK(!is_longrope ||
                   (options.short_factors.size() == pairs && options.long_factors.size() == pairs),
               Code::kShape, "longrope: ", options.short_factors.size(), " short and ",
               options.long_factors.size(), " long factors; expected head_dim / 2 = ", pairs,
               " of each");
  std::vector<double> f, of_long;
  for (int64_t i = 0; i < options.head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(options.head_dim);
    const double frequency = std::pow(options.theta, -exponent);
    f.push_back(scaled(frequency, i / 2, options));
    if (is_longrope) {
      of_long.push_back(frequency / options.long_factors[static_cast<size_t>(i / 2)]);
    }
  }
  tables_.frequencies = at::tensor(f, at::kDouble);
  if (is_longrope) long_.frequencies = at::tensor(of_long, at::kDouble);
}

const Rotary::Tables& Rotary::extended(int64_t num_positions, const Tensor& like) {
  Tables& t = is_long(num_positions) ? long_ : tables_;
  if (t.cos.defined() && t.cos.size(0) >= num_positions &&
      t.cos.scalar_type() == like.scalar_type() && t.cos.device() == like.device()) {
    return t;
  }
  const at::NoGradGuard no_grad;
  // Tables at least double, so all outgrown ones together are smaller than the last.
  const bool is_outgrown = t.cos.defined() && !t.cos.is_cpu() && num_positions > t.cos.size(0) &&
                           t.cos.scalar_type() == like.scalar_type();
  if (is_outgrown) outgrown_.push_back(t);
  const int64_t had = t.cos.defined() ? t.cos.size(0) : 128;
  const int64_t rows =
      num_positions > had || !t.cos.defined() ? std::max(num_positions, 2 * had) : had;
  const Tensor angles = at::outer(at::arange(rows, at::kDouble), t.frequencies);
  t.cos = (angles.cos() * options_.magnitude).to(like.options(), /*non_blocking=*/true);
  t.sin = (angles.sin() * options_.magnitude).to(like.options(), /*non_blocking=*/true);
  return t;
}

RotaryAngles Rotary::angles(const Tensor& positions, const Tensor& like) {
  const auto rows = positions.sizes();
  CLEAVE_CHECK(!rows.empty() && rows.size() <= 2, Code::kShape, "rotary: positions ", rows,
               "; expected [B or 1, T] or [T]");
  if (positions.numel() == 0) return angles(Range{0, 0}, like);
  // A dry run has no position values.
  const Tables& t = extended(positions.is_meta() ? 1 : positions.max().item<int64_t>() + 1, like);
  const Tensor at_positions = positions.flatten().to(like.device(), /*non_blocking=*/true);
  auto shape = rows.vec();
  shape.push_back(t.cos.size(1));
  return {.cos = t.cos.index_select(0, at_positions).view(shape),
          .sin = t.sin.index_select(0, at_positions).view(shape)};
}

RotaryAngles Rotary::angles(Range positions, const Tensor& like) {
  const Tables& t = extended(positions.end, like);
  return {.cos = t.cos.narrow(0, positions.begin, positions.size()),
          .sin = t.sin.narrow(0, positions.begin, positions.size())};
}

Tensor apply_rotary(const Tensor& x, const RotaryAngles& angles) {
  Tensor cos = angles.cos;
  Tensor sin = angles.sin;
  const auto rows = cos.sizes();
  const size_t dims = rows.size();
  CLEAVE_CHECK(x.dim() == 4 && dims >= 2 && dims <= 3 && x.size(3) == 2 * rows[dims - 1] &&
                   rows[dims - 2] == x.size(2) &&
                   (dims == 2 || rows[0] == 1 || rows[0] == x.size(0)) && sin.sizes() == rows,
               Code::kShape, "rotary: x ", x.sizes(), ", cos ", rows, ", sin ", sin.sizes(),
               "; expected [B, H, T, K] and [B or 1, T, K/2] or [T, K/2]");
  if (x.numel() == 0) return x;
  if (is_on(Kernel::kRotary) && takes_fused({x, cos, sin})) {
    return fused_rotary(x, cos.contiguous(), sin.contiguous());
  }
  if (dims == 3) {  // [B, T, K/2] -> [B, 1, T, K/2]
    cos = cos.unsqueeze(1);
    sin = sin.unsqueeze(1);
  }
  return differentiable(
      "rotary", x, [&](const Tensor& t) { return rotate_halves(t, cos, sin); },
      [cos, sin](const Tensor& g) { return rotate_halves(g, cos, -sin); });
}

}  // namespace cleave::inline nn
