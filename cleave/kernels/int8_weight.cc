#include "cleave/kernels/int8_weight.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/kernels/cpu/dequantize.h"

namespace cleave::inline kernels {
namespace {

/// Rows with a smaller magnitude are treated as zeros, so that dividing by the scale stays finite.
constexpr double kMinRowMagnitude = 1e-30;
constexpr int64_t kGrainElements = 32768;

}  // namespace

Tensor int8_scales(const Tensor& largest) {
  const at::NoGradGuard no_grad;
  const Tensor scales = largest.to(at::kFloat) / 127;
  return scales.masked_fill(largest.lt(kMinRowMagnitude), 1);
}

Tensor to_int8_values(const Tensor& x, const Tensor& scales) {
  const at::NoGradGuard no_grad;
  return x.to(at::kFloat).div(scales).round_().clamp_(-127, 127).to(at::kChar);
}

Tensor dequantize(const Int8Weight& weight, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const Tensor& values = weight.values;
  Tensor out = at::empty(values.sizes(), values.options().dtype(type));
  if (values.is_meta() || values.numel() == 0) return out;
  if (!values.is_cpu() || (type != at::kFloat && type != at::kBFloat16)) {
    const Tensor scales = weight.scales.unsqueeze(1 - weight.row_dim);
    return at::mul_out(out, values, scales);
  }
  const DequantizeJob job{.width = values.size(1),
                          .is_bf16 = type == at::kBFloat16,
                          .has_column_scales = weight.row_dim == 1,
                          .values = values.const_data_ptr<int8_t>(),
                          .scales = weight.scales.const_data_ptr<float>(),
                          .to = out.mutable_data_ptr()};
  at::parallel_for(0, values.size(0), 1 + kGrainElements / job.width,
                   [&](int64_t begin, int64_t end) { dequantize_rows(job, begin, end); });
  return out;
}

}  // namespace cleave::inline kernels
