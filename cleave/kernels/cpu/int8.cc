#include "cleave/kernels/cpu/int8.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/int8_loops.h"

namespace cleave {
namespace {

constexpr int64_t kGrainBytes = 65536;

int64_t padded(int64_t width) {
  return (width + kInt8Block - 1) / kInt8Block * kInt8Block;
}

/// 127 / largest; a row of zeros has no scale to lose.
Tensor factors_of(const Tensor& largest) {
  return at::where(largest.gt(0), 127 / largest, at::ones_like(largest));
}

/// Rows as bytes with 128 added, [rows, padded width].
Tensor bytes_of(const Tensor& rows, const Tensor& largest) {
  const int64_t width = rows.size(1);
  const Tensor out = at::empty({rows.size(0), padded(width)}, at::kByte);
  const Tensor factors = factors_of(largest);
  const auto* factor = factors.const_data_ptr<float>();
  const auto* from = rows.const_data_ptr<float>();
  auto* to = out.data_ptr<uint8_t>();
  at::parallel_for(0, rows.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int8_row(from + r * width, width, out.size(1), factor[r], to + r * out.size(1));
    }
  });
  return out;
}

}  // namespace

Tensor largest_of_rows(const Tensor& rows) {
  const at::NoGradGuard no_grad;
  const Tensor flat = rows.detach().reshape({-1, rows.size(-1)});
  if (flat.numel() == 0) return at::zeros({flat.size(0)}, at::kFloat);
  const auto [least, most] = flat.aminmax(1);
  return at::maximum(least.neg(), most).to(at::kFloat);
}

Int8Matrix to_int8(const Tensor& weight, const Tensor& largest) {
  const at::NoGradGuard no_grad;
  const Tensor rows = weight.detach().to(at::kFloat).contiguous();
  CLEAVE_CHECK(largest.isfinite().all().item<bool>(), Code::kNumerics,
               "a weight is not finite; it has no 8-bit form");
  const Tensor values = bytes_of(rows, largest).to(at::kShort).sub_(128).to(at::kChar);
  return {.values = values,
          .scales = 1 / factors_of(largest),
          .sums = values.sum(1, false, at::kInt),
          .width = rows.size(1)};
}

Tensor int8_linear(const Tensor& x, const Int8Matrix& weight, const Tensor& largest,
                   const std::optional<Tensor>& bias) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const Tensor rows = x.detach().reshape({-1, weight.width}).contiguous();
  const Tensor bytes = bytes_of(rows, largest);
  const Tensor sums = at::empty({rows.size(0), weight.values.size(0)}, at::kInt);
  const Int8Job job{.rows = rows.size(0),
                    .columns = weight.values.size(0),
                    .width = weight.values.size(1),
                    .x = bytes.const_data_ptr<uint8_t>(),
                    .weight = weight.values.const_data_ptr<int8_t>(),
                    .out = sums.data_ptr<int32_t>()};
  const int64_t grain = std::max<int64_t>(8, kGrainBytes / std::max<int64_t>(job.width, 1));
  at::parallel_for(0, job.columns, grain,
                   [&](int64_t begin, int64_t end) { int8_products(job, begin, end); });
  // The 128s that were added to x count once for every number of the matrix's row.
  Tensor y = sums.sub_(weight.sums, 128).to(at::kFloat).mul_(weight.scales);
  y.mul_((1 / factors_of(largest)).unsqueeze(1));
  if (bias) y.add_(*bias);
  auto shape = x.sizes().vec();
  shape.back() = job.columns;
  return y.view(shape);
}

}  // namespace cleave
