#include "cleave/kernels/cpu/int8.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/int8_loops.h"
#include "cleave/kernels/cpu/reorder.h"
#include "cleave/kernels/cpu/rows.h"

namespace cleave::inline kernels {
namespace {

constexpr int64_t kGrainBytes = 65536;
/// Maximal number of products whose sum fits in 32 bits for any values: 127 * 127 each.
/// Intermediate sums of 255 * 127 may wrap around.
constexpr int64_t kMaxWidth = 133144;
/// Rows with a smaller magnitude are treated as zeros, so that dividing by the scale stays finite.
constexpr float kMinRowMagnitude = 1e-30F;

int64_t rounded_up(int64_t count, int64_t step) {
  return (count + step - 1) / step * step;
}

/// Number of rows, also for rows of width 0, where it cannot be computed from numel().
int64_t rows_of(const Tensor& t) {
  return c10::multiply_integers(t.sizes().begin(), t.sizes().end() - 1);
}

/// The step between int8 values of a row; 1 for a row of zeros. NaN or infinity if the row has one,
/// so that its products are not finite.
float scale_of(float largest) {
  return largest < kMinRowMagnitude ? 1 : largest / 127;
}

/// Calls work(first, chunk) for chunks of the rows, in fp32: a whole matrix in fp32 would take four
/// times the memory of its result. Chunks start at multiples of a panel's rows.
template <class Work>
void for_each_chunk(const Tensor& rows, const Work& work) {
  constexpr int64_t kChunkWeights = int64_t{1} << 20;
  static_assert(kPanel % kInt8Columns == 0);
  const int64_t count = rows.size(0), width = std::max<int64_t>(rows.size(1), 1);
  const int64_t step = rounded_up(std::max<int64_t>(kChunkWeights / width, 1), kPanel);
  for (int64_t first = 0; first < count; first += step) {
    const Tensor chunk = rows.narrow(0, first, std::min(step, count - first));
    work(first, chunk.to(at::kFloat).contiguous());
  }
}

/// Quantized rows with 128 added, and each row's scale.
struct Bytes {
  Tensor values;  // [rows, padded width]
  Tensor scales;  // [rows]
};

/// `largest` [rows] is the largest magnitude of each whole row; undefined if `rows` are whole.
Bytes bytes_of(const Tensor& rows, const Tensor& largest) {
  const int64_t width = rows.size(1);
  const int64_t padded = rounded_up(width, kInt8Group);
  Bytes out{.values = at::empty({rows.size(0), padded}, at::kByte),
            .scales = at::empty({rows.size(0)}, at::kFloat)};
  const auto* known = largest.defined() ? largest.const_data_ptr<float>() : nullptr;
  const auto* from = rows.const_data_ptr<float>();
  auto* to = out.values.data_ptr<uint8_t>();
  auto* scales = out.scales.data_ptr<float>();
  at::parallel_for(0, rows.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = from + r * width;
      scales[r] = scale_of(known != nullptr ? known[r] : largest_of_row(row, width));
      int8_row(row, width, padded, 1 / scales[r], to + r * padded);
    }
  });
  return out;
}

}  // namespace

Tensor largest_of_rows(const Tensor& rows) {
  const at::NoGradGuard no_grad;
  const int64_t count = rows_of(rows), width = rows.size(-1);
  const Tensor flat = rows.detach().reshape({count, width});
  Tensor out = at::empty({count}, at::kFloat);
  auto* largest = out.mutable_data_ptr<float>();
  for_each_chunk(flat, [&](int64_t first, const Tensor& chunk) {
    const auto* from = chunk.const_data_ptr<float>();
    at::parallel_for(0, chunk.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        largest[first + r] = largest_of_row(from + r * width, width);
      }
    });
  });
  return out;
}

Int8Matrix to_int8(const Tensor& weight, const Tensor& largest) {
  const at::NoGradGuard no_grad;
  const int64_t out = weight.size(0), in = weight.size(1);
  CLEAVE_CHECK(in <= kMaxWidth, Code::kShape, "a matrix of ", in,
               " inputs is too wide for int8, which allows at most ", kMaxWidth,
               "; choose another --dtype");
  const int64_t width = rounded_up(in, kInt8Group), padded_out = rounded_up(out, kInt8Columns);
  Int8Matrix matrix{.values = at::empty({padded_out, width}, at::kChar),
                    .scales = at::zeros({padded_out}, at::kFloat),
                    .sums = at::zeros({padded_out}, at::kInt),
                    .in = in,
                    .out = out};
  for_each_chunk(weight.detach(), [&](int64_t first, const Tensor& rows) {
    const int64_t count = rows.size(0), padded = rounded_up(count, kInt8Columns);
    const Bytes bytes =
        bytes_of(rows, largest.defined() ? largest.narrow(0, first, count) : Tensor());
    const Tensor values = bytes.values.bitwise_xor(0x80).view(at::kChar);  // subtracts 128
    const Tensor whole = at::constant_pad_nd(values, {0, 0, 0, padded - count});
    matrix.scales.narrow(0, first, count).copy_(bytes.scales);
    matrix.sums.narrow(0, first, count).copy_(values.sum(1, false, at::kInt));
    to_panels(whole.const_data_ptr(), padded, width / kInt8Group,
              matrix.values.mutable_data_ptr<int8_t>() + first * width);
  });
  return matrix;
}

Tensor int8_linear(const Tensor& x, const Int8Matrix& weight, const std::optional<Tensor>& bias,
                   const Tensor& largest) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const Tensor rows = x.reshape({rows_of(x), weight.in}).contiguous();
  const Bytes bytes = bytes_of(rows, largest);
  auto shape = x.sizes().vec();
  shape.back() = weight.out;
  Tensor y = at::empty(shape, x.options());
  const Int8Job job{.rows = rows.size(0),
                    .columns = weight.out,
                    .width = bytes.values.size(1),
                    .x = bytes.values.const_data_ptr<uint8_t>(),
                    .x_scale = bytes.scales.const_data_ptr<float>(),
                    .weight = weight.values.const_data_ptr<int8_t>(),
                    .weight_sum = weight.sums.const_data_ptr<int32_t>(),
                    .weight_scale = weight.scales.const_data_ptr<float>(),
                    .bias = bias ? bias->const_data_ptr<float>() : nullptr,
                    .out = y.data_ptr<float>()};
  const int64_t grain = 1 + kGrainBytes / std::max<int64_t>(kPanel * job.width, 1);
  at::parallel_for(0, num_panels(job.columns), grain,
                   [&](int64_t begin, int64_t end) { int8_products(job, begin, end); });
  return y;
}

}  // namespace cleave::inline kernels
