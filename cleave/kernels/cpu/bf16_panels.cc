#include "cleave/kernels/cpu/bf16_panels.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/kernels/cpu/few_rows_loops.h"
#include "cleave/kernels/cpu/panels.h"

namespace cleave {
namespace {

// Rows whose sums exist in fp32 at once: they stay in the first-level cache.
constexpr int64_t kBlockRows = 8 * kPairRows;
// Bytes of the matrix that are worth a thread of their own.
constexpr int64_t kGrainBytes = 65536;
constexpr int64_t kLineWords = 16;
// How far ahead of its reading a matrix is fetched that is read once: the processor foresees no
// more than a page.
constexpr int64_t kAheadWords = 1024;

/// Operands and the result, of `rows` rows.
struct Job {
  int64_t rows = 0, pairs = 0, out = 0;
  const uint32_t* x = nullptr;
  const uint32_t* weight = nullptr;
  const uint16_t* bias = nullptr;
  uint16_t* result = nullptr;
};

/// Outputs [begin, begin + width) of all rows, which are one panel.
void multiply_panel(const Job& job, int64_t begin, int64_t width) {
  float sums[kBlockRows * kPanel];
  const uint32_t* panel = job.weight + begin * job.pairs;
  const bool is_read_once = job.rows <= kPairRows;
  for (int64_t row = 0; row < job.rows; row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, job.rows - row);
    const bool fetches = row == 0 && begin + width < job.out;
    multiply_pairs({.rows = rows,
                    .columns = width,
                    .pairs = job.pairs,
                    .a = job.x + row * job.pairs,
                    .a_row = job.pairs,
                    .a_pair = 1,
                    .b = panel,
                    .ldb = width,
                    .c = sums,
                    .ldc = width,
                    .next = panel + (is_read_once ? kAheadWords : width * job.pairs),
                    .next_lines = fetches ? width * job.pairs / kLineWords : 0});
    few_rows_finish({.rows = rows,
                     .out = job.out,
                     .is_bf16 = true,
                     .y = sums,
                     .y_stride = width,
                     .bias = job.bias == nullptr ? nullptr : job.bias + begin,
                     .result = job.result + row * job.out + begin},
                    0, width);
  }
}

}  // namespace

bool takes_panels(const Tensor& weight) {
  return weight.is_cpu() && weight.scalar_type() == at::kBFloat16 && weight.size(0) % 16 == 0 &&
         weight.size(1) % 2 == 0 && weight.numel() > 0 && has_bf16_products();
}

Bf16Panels to_panels(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  const Tensor rows = weight.contiguous();
  const int64_t pairs = rows.size(1) / 2;
  Bf16Panels panels{
      .pairs = at::empty({rows.size(0) * pairs}, at::kInt), .in = 2 * pairs, .out = rows.size(0)};
  to_panels(rows.const_data_ptr(), panels.out, pairs, panels.pairs.mutable_data_ptr());
  return panels;
}

Tensor panels_linear(const Tensor& x, const Bf16Panels& weight, const std::optional<Tensor>& bias) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const Tensor in = x.contiguous();
  auto shape = in.sizes().vec();
  shape.back() = weight.out;
  Tensor result = at::empty(shape, in.options());
  const Tensor added = bias ? bias->contiguous() : Tensor();
  const Job job{.rows = in.numel() / weight.in,
                .pairs = weight.in / 2,
                .out = weight.out,
                .x = static_cast<const uint32_t*>(in.const_data_ptr()),
                .weight = static_cast<const uint32_t*>(weight.pairs.const_data_ptr()),
                .bias = bias ? static_cast<const uint16_t*>(added.const_data_ptr()) : nullptr,
                .result = static_cast<uint16_t*>(result.mutable_data_ptr())};
  const int64_t panel_bytes = kPanel * weight.in * 2;
  at::parallel_for(
      0, num_panels(weight.out), 1 + kGrainBytes / panel_bytes, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) {
          multiply_panel(job, panel * kPanel, std::min(kPanel, job.out - panel * kPanel));
        }
      });
  return result;
}

}  // namespace cleave
