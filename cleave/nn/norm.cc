#include "cleave/nn/norm.h"

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/nn/subject.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline nn {
namespace {

void check_rows_are_whole(const std::string& path, const DTensor& x, int64_t width) {
  const Placement& p = x.placement();
  CLEAVE_CHECK(!p.is_partial() && !p.is_shard(x.dim() - 1), Code::kShape, subject(path),
               "a norm needs whole rows; it got ", p.describe(), " made by ", x.maker(),
               "; give that module the `output` Replicate or Shard(1) in the plan");
  CLEAVE_CHECK(x.size(-1) == width, Code::kShape, subject(path), "input has width ", x.size(-1),
               "; the norm has ", width);
}

/// Whether a norm with these weights can also compute its input, a + b.
bool takes_fused_sum(const Tensor& a, const Tensor& b, std::initializer_list<Tensor> weights) {
  return a.defined() && is_on(Kernel::kNorm) && takes_fused({a, b}) && takes_fused(weights) &&
         weights.begin()->scalar_type() == a.scalar_type() &&
         weights.begin()->device() == a.device();
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset) {
  const bool fits = x.dim() > 0 && weight.sizes() == x.sizes().slice(x.sizes().size() - 1);
  if (fits && is_on(Kernel::kNorm) && takes_fused({x, weight})) {
    return fused_rms_norm(x, weight, eps, offset);
  }
  if (offset == 0) return at::rms_norm(x, weight.sizes(), weight, eps);
  // 1 + weight in 16 bits would lose most of a small weight.
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::rms_norm(x.to(type), weight.sizes(), weight.to(type) + offset, eps)
      .to(x.scalar_type());
}

RmsNorm::RmsNorm(int64_t width, double eps, double offset)
    : weight_(std::make_shared<Parameter>(std::vector<int64_t>{width}, Init::constant(1 - offset))),
      eps_(eps),
      offset_(offset) {
  add("weight", weight_);
}

DTensor RmsNorm::forward(const DTensor& x, const Context& /*context*/) {
  check_rows_are_whole(path(), x, weight_->shape()[0]);
  weight_->used_in(x);
  const Tensor& weight = weight_->use();
  if (const auto [a, b] = x.open_sum(); takes_fused_sum(a, b, {weight})) {
    NormedSum result = fused_rms_norm(Terms{.a = a, .b = b}, weight, eps_, offset_);
    x.set_sum(result.sum);
    return x.with(result.normed);
  }
  return x.with(rms_norm(x.local(), weight, eps_, offset_));
}

LayerNorm::LayerNorm(int64_t width, double eps)
    : weight_(std::make_shared<Parameter>(std::vector<int64_t>{width}, Init::constant(1))),
      bias_(std::make_shared<Parameter>(std::vector<int64_t>{width}, Init::constant(0))),
      eps_(eps) {
  add("weight", weight_);
  add("bias", bias_);
}

DTensor LayerNorm::forward(const DTensor& x, const Context& /*context*/) {
  check_rows_are_whole(path(), x, weight_->shape()[0]);
  weight_->used_in(x);
  bias_->used_in(x);
  const Tensor& weight = weight_->use();
  const Tensor& bias = bias_->use();
  if (const auto [a, b] = x.open_sum(); takes_fused_sum(a, b, {weight, bias})) {
    NormedSum result = fused_layer_norm(Terms{.a = a, .b = b}, weight, bias, eps_);
    x.set_sum(result.sum);
    return x.with(result.normed);
  }
  if (is_on(Kernel::kNorm) && takes_fused({x.local(), weight, bias})) {
    return x.with(fused_layer_norm(x.local(), weight, bias, eps_));
  }
  return x.with(at::layer_norm(x.local(), weight_->shape(), weight, bias, eps_));
}

}  // namespace cleave::inline nn
