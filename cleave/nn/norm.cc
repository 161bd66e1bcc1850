#include "cleave/nn/norm.h"

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/kernels.h"
#include "cleave/nn/subject.h"

namespace cleave {
namespace {

void check_rows_are_whole(const std::string& path, const DTensor& x, int64_t width) {
  const Placement& p = x.placement();
  CLEAVE_CHECK(!p.is_partial() && !p.is_shard(x.dim() - 1), Code::kShape, subject(path),
               "a norm needs whole rows; it got ", p.describe(), " made by ", x.maker(),
               "; give that module an output layout of Replicate or Shard(1)");
  CLEAVE_CHECK(x.size(-1) == width, Code::kShape, subject(path), "input has width ", x.size(-1),
               "; the norm has ", width);
}

}  // namespace

RmsNorm::RmsNorm(int64_t width, double eps)
    : weight_(std::make_shared<Parameter>(std::vector<int64_t>{width}, Init::constant(1))),
      eps_(eps) {
  add("weight", weight_);
}

DTensor RmsNorm::forward(const DTensor& x, const Context& /*context*/) {
  check_rows_are_whole(path(), x, weight_->shape()[0]);
  weight_->used_in(x);
  if (is_on(Kernel::kNorm) && takes_fused({x.local(), weight_->use()})) {
    return x.with(fused_rms_norm(x.local(), weight_->use(), eps_));
  }
  return x.with(at::rms_norm(x.local(), weight_->shape(), weight_->use(), eps_));
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
  if (is_on(Kernel::kNorm) && takes_fused({x.local(), weight, bias})) {
    return x.with(fused_layer_norm(x.local(), weight, bias, eps_));
  }
  return x.with(at::layer_norm(x.local(), weight_->shape(), weight, bias, eps_));
}

}  // namespace cleave
