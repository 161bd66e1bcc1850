#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/kernels/cpu/few_rows_loops.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cpu/wide_product.h"

namespace cleave::inline kernels {
namespace {

// Minimal bytes of the matrix per thread.
constexpr int64_t kGrainBytes = 65536;

// Most rows of bf16 on CPUs without fast products of it. They take several passes over a part of
// the matrix; with more rows, products in fp32 are faster.
constexpr int64_t kMostBf16Rows = 8 * kMaxFewRows;
// Columns per pass, whose part of the matrix stays in the L2 cache.
constexpr int64_t kPassBytes = 131072;

int64_t rows_of(const Tensor& x) {
  return x.dim() == 0 || x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

/// Columns [begin, end) of y, of any number of packed rows.
void multiply_in_passes(const FewRowsJob& job, int64_t begin, int64_t end) {
  if (job.rows <= kMaxFewRows) return few_rows_range(job, begin, end);
  const int64_t width = std::max<int64_t>(2, kPassBytes / (4 * job.in) * 2);
  for (int64_t column = begin; column < end; column += width) {
    for (int64_t row = 0; row < job.rows; row += kMaxFewRows) {
      few_rows_range({.rows = std::min(kMaxFewRows, job.rows - row),
                      .in = job.in,
                      .out = job.out,
                      .is_bf16 = job.is_bf16,
                      .x = job.x + row * few_rows_stride(job.in),
                      .weight = job.weight,
                      .y = job.y + row * job.y_stride,
                      .y_stride = job.y_stride},
                     column, std::min(end, column + width));
    }
  }
}

}  // namespace

bool takes_few_rows(const Tensor& x, const Tensor& weight) {
  const at::ScalarType type = x.scalar_type();
  const int64_t most = lacks_fast_products(type) ? kMostBf16Rows : kMaxFewRows;
  return x.is_cpu() && weight.is_cpu() && weight.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16) && rows_of(x) > 0 && rows_of(x) <= most &&
         weight.numel() > 0 && weight.is_contiguous() && weight.size(-1) == x.size(-1);
}

Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const Tensor in = x.contiguous();
  const bool is_bf16 = x.scalar_type() == at::kBFloat16;
  auto shape = in.sizes().vec();
  shape.back() = weight.size(0);
  Tensor result = at::empty(shape, in.options());
  const Tensor sums = is_bf16 ? at::empty(shape, in.options().dtype(at::kFloat)) : result;
  const Tensor added = bias ? bias->to(x.scalar_type()).contiguous() : Tensor();
  FewRowsJob job{.rows = rows_of(in),
                 .in = in.size(-1),
                 .out = weight.size(0),
                 .is_bf16 = is_bf16,
                 .weight = weight.const_data_ptr(),
                 .y = sums.mutable_data_ptr<float>(),
                 .y_stride = weight.size(0),
                 .bias = bias ? added.const_data_ptr() : nullptr,
                 .result = result.mutable_data_ptr()};
  const bool has_products = is_bf16 && has_bf16_products();
  Tensor packed;
  if (!has_products) {
    packed = at::empty({job.rows, few_rows_stride(job.in)}, sums.options());
    few_rows_pack(job, in.const_data_ptr(), packed.data_ptr<float>());
    job.x = packed.const_data_ptr<float>();
  }
  const int64_t column_bytes = job.in * static_cast<int64_t>(weight.element_size());
  at::parallel_for(0, job.out, std::max<int64_t>(1, kGrainBytes / column_bytes),
                   [&](int64_t begin, int64_t end) {
                     has_products ? bf16_rows_range(job, in.const_data_ptr(), begin, end)
                                  : multiply_in_passes(job, begin, end);
                     few_rows_finish(job, begin, end);
                   });
  return result;
}

}  // namespace cleave::inline kernels
