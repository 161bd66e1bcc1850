#include "cleave/kernels/cpu/panels_linear.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/kernels/cpu/few_rows_loops.h"
#include "cleave/kernels/cpu/float_products.h"
#include "cleave/kernels/cpu/kernel_job.h"
#include "cleave/kernels/cpu/reorder.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave::inline kernels {
namespace {

// Rows per block, so that their fp32 sums stay in the L1 cache.
constexpr int64_t kBlockRows = 8 * kPairRows;
// Length of the summed dim per pass over all rows, so that this part of a panel stays in the L2
// cache.
constexpr int64_t kBlockDepth = 1024;
// Minimal bytes of the matrix per thread.
constexpr int64_t kGrainBytes = 65536;
constexpr int64_t kLineWords = 16;
// Prefetch distance in the matrix: the CPU's own prefetcher stops at page boundaries.
constexpr int64_t kAheadWords = 1024;

/// Operands and result. `words` is the number of 32-bit words (inputs) in a row of x.
struct Job {
  int64_t rows = 0, words = 0, out = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* result = nullptr;
  [[no_unique_address]] NotStored not_stored{};
};

/// Outputs [begin, begin + width) of all rows: one panel.
void multiply_bf16_panel(const Job& job, int64_t begin, int64_t width) {
  float sums[kBlockRows * kPanel];
  const auto* x = static_cast<const uint32_t*>(job.x);
  const auto* bias = static_cast<const uint16_t*>(job.bias);
  const uint32_t* panel = static_cast<const uint32_t*>(job.weight) + begin * job.words;
  const bool is_read_once = job.rows <= kPairRows;
  for (int64_t row = 0; row < job.rows; row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, job.rows - row);
    const bool fetches = row == 0 && begin + width < job.out;
    multiply_pairs({.rows = rows,
                    .columns = width,
                    .pairs = job.words,
                    .a = x + row * job.words,
                    .a_row = job.words,
                    .a_pair = 1,
                    .b = panel,
                    .ldb = width,
                    .c = sums,
                    .ldc = width,
                    .next = panel + (is_read_once ? kAheadWords : width * job.words),
                    .next_lines = fetches ? width * job.words / kLineWords : 0});
    few_rows_finish({.rows = rows,
                     .out = job.out,
                     .is_bf16 = true,
                     .y = sums,
                     .y_stride = width,
                     .bias = bias == nullptr ? nullptr : bias + begin,
                     .result = static_cast<uint16_t*>(job.result) + row * job.out + begin},
                    0, width);
  }
}

void multiply_float_panel(const Job& job, int64_t begin, int64_t width) {
  const auto* x = static_cast<const float*>(job.x);
  const auto* bias = static_cast<const float*>(job.bias);
  const float* panel = static_cast<const float*>(job.weight) + begin * job.words;
  float* result = static_cast<float*>(job.result) + begin;
  for (int64_t k = 0; k < job.words; k += kBlockDepth) {
    multiply_float_rows({.rows = job.rows,
                         .columns = width,
                         .depth = std::min(kBlockDepth, job.words - k),
                         .a = {.data = x + k, .row = job.words, .col = 1},
                         .b = panel + k * width,
                         .ldb = width,
                         .c = result,
                         .ldc = job.out,
                         .adds = k > 0,
                         .ahead = kAheadWords});
  }
  few_rows_finish({.rows = job.rows,
                   .out = job.out,
                   .y = result,
                   .y_stride = job.out,
                   .bias = bias == nullptr ? nullptr : bias + begin,
                   .result = result},
                  0, width);
}

bool is_bf16(const PanelMatrix& matrix) {
  return matrix.words.scalar_type() == at::kInt;
}

}  // namespace

bool takes_panels(const Tensor& weight) {
  const bool is_float = weight.scalar_type() == at::kFloat;
  const bool is_pairs =
      weight.scalar_type() == at::kBFloat16 && weight.size(1) % 2 == 0 && has_bf16_products();
  return weight.is_cpu() && (is_float || is_pairs) && weight.size(0) % 16 == 0 &&
         weight.numel() > 0;
}

void to_panels(const void* rows, int64_t out, int64_t words, void* to) {
  // The words are copied as floats, whatever their type.
  const auto* source = static_cast<const float*>(rows);
  auto* target = static_cast<float*>(to);
  at::parallel_for(0, num_panels(out), 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kPanel; first < std::min(out, end * kPanel); first += kPanel) {
      const int64_t width = std::min(kPanel, out - first);
      transpose_rows(TransposeJob<float>{.columns = words,
                                         .from = source + first * words,
                                         .from_stride = words,
                                         .to = target + first * words,
                                         .to_stride = width},
                     0, width);
    }
  });
}

PanelMatrix to_panels(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  const Tensor rows = weight.contiguous();
  const bool is_float = weight.scalar_type() == at::kFloat;
  const int64_t words = rows.size(1) / (is_float ? 1 : 2);
  PanelMatrix matrix{.words = at::empty({rows.size(0) * words}, is_float ? at::kFloat : at::kInt),
                     .in = rows.size(1),
                     .out = rows.size(0)};
  to_panels(rows.const_data_ptr(), matrix.out, words, matrix.words.mutable_data_ptr());
  return matrix;
}

Tensor panels_linear(const Tensor& x, const PanelMatrix& weight,
                     const std::optional<Tensor>& bias) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const Tensor in = x.contiguous();
  auto shape = in.sizes().vec();
  shape.back() = weight.out;
  Tensor result = at::empty(shape, in.options());
  const Tensor added = bias ? bias->contiguous() : Tensor();
  const Job job{.rows = in.numel() / weight.in,
                .words = weight.words.numel() / weight.out,
                .out = weight.out,
                .x = in.const_data_ptr(),
                .weight = weight.words.const_data_ptr(),
                .bias = bias ? added.const_data_ptr() : nullptr,
                .result = result.mutable_data_ptr()};
  count_product({.rows = job.rows, .inner = weight.in, .columns = weight.out});
  const auto multiply = is_bf16(weight) ? multiply_bf16_panel : multiply_float_panel;
  const int64_t panel_bytes = kPanel * job.words * 4;
  at::parallel_for(0, num_panels(weight.out), 1 + kGrainBytes / panel_bytes,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t panel = begin; panel < end; ++panel) {
                       multiply(job, panel * kPanel, std::min(kPanel, job.out - panel * kPanel));
                     }
                   });
  return result;
}

}  // namespace cleave::inline kernels
