#include "cleave/kernels/cpu/int4.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/int4_loops.h"

namespace cleave::inline kernels {
namespace {

constexpr int64_t kGrainBytes = 65536;
/// Rows of x per thread.
constexpr int64_t kGrainRows = 4;

int64_t num_int4_panels(int64_t out) {
  return (out + kInt4Panel - 1) / kInt4Panel;
}

/// 1 / scale; 0 for 0.
Tensor inverse_of(const Tensor& scales) {
  return scales.reciprocal().masked_fill(scales.eq(0), 0);
}

/// Copies one group of the outputs of a panel into its block.
struct BlockWriter {
  const Int4Rows& rows;
  int64_t groups, first, count;  ///< groups of a row; the panel's outputs

  void write(int64_t group, uint8_t* block) const {
    const auto* codes = rows.codes.const_data_ptr<uint8_t>();
    for (int64_t c = 0; c < count; ++c) {
      const uint8_t* from = codes + ((first + c) * groups + group) * (kInt4Group / 2);
      for (int64_t j = 0; j < 4; ++j) {
        std::memcpy(block + 4 * (kInt4Panel * j + c), from + 4 * j, 4);
      }
    }
    uint8_t* numbers = block + kInt4Panel * kInt4Group / 2;
    copy_halves(rows.scales, group, numbers);
    if (rows.mins.defined()) copy_halves(rows.mins, group, numbers + 2 * kInt4Panel);
  }

 private:
  void copy_halves(const Tensor& halves, int64_t group, uint8_t* to) const {
    const auto* from = halves.const_data_ptr<at::Half>();
    for (int64_t c = 0; c < count; ++c) {
      std::memcpy(to + 2 * c, from + (first + c) * groups + group, 2);
    }
  }
};

/// Activations in groups. All arrays share one allocation, because allocations take a noticeable
/// part of the time of products in decoding.
class QuantizedInput {
 public:
  QuantizedInput(int64_t rows, int64_t groups) : count_(rows * groups) {
    constexpr int64_t kBytes = sizeof(float) * 2 + sizeof(int32_t) + kInt4Group;
    memory_ = at::empty({count_ * kBytes}, at::kByte);
  }

  [[nodiscard]] float* scales() const { return numbers<float>(0); }
  [[nodiscard]] float* totals() const { return numbers<float>(1); }
  [[nodiscard]] int32_t* offsets() const { return numbers<int32_t>(2); }
  [[nodiscard]] int8_t* values() const { return reinterpret_cast<int8_t*>(numbers<float>(3)); }

 private:
  /// The i-th array of numbers of 4 bytes.
  template <class T>
  [[nodiscard]] T* numbers(int64_t i) const {
    return reinterpret_cast<T*>(memory_.mutable_data_ptr<uint8_t>()) + i * count_;
  }

  int64_t count_;
  Tensor memory_;
};

QuantizedInput quantized(const Tensor& rows, const Int4Matrix& weight, const Tensor& largest) {
  const int64_t count = rows.size(0);
  QuantizedInput out(count, static_cast<int64_t>(weight.parts.size()));
  const Int4InputJob job{.width = weight.in,
                         .parts = weight.parts,
                         .x = rows.const_data_ptr<float>(),
                         .largest = largest.defined() ? largest.const_data_ptr<float>() : nullptr,
                         .values = out.values(),
                         .scales = out.scales(),
                         .offsets = out.offsets(),
                         .totals = out.totals()};
  at::parallel_for(0, count, kGrainRows,
                   [&](int64_t begin, int64_t end) { int4_input_rows(job, begin, end); });
  return out;
}

}  // namespace

Tensor in_groups(const Tensor& rows, const std::vector<Int4Part>& parts) {
  const auto groups = static_cast<int64_t>(parts.size());
  const Tensor in = rows.detach().to(at::kFloat);
  if (in.size(1) == groups * kInt4Group) {
    return in.contiguous().view({in.size(0), groups, kInt4Group});
  }
  Tensor padded = at::zeros({in.size(0), groups * kInt4Group}, at::kFloat);
  for (int64_t g = 0; g < groups; ++g) {
    const Int4Part& part = parts[static_cast<size_t>(g)];
    padded.narrow(1, g * kInt4Group + part.at, part.count)
        .copy_(in.narrow(1, part.from, part.count));
  }
  return padded.view({in.size(0), groups, kInt4Group});
}

Int4Bounds int4_bounds(const Tensor& groups) {
  auto [low, high] = at::aminmax(groups, 2);
  return {.low = low.clamp_max(0), .high = high.clamp_min(0)};
}

Int4Rows to_int4(const Tensor& groups, const Int4Bounds& bounds, bool has_mins,
                 const std::string& what) {
  const at::NoGradGuard no_grad;
  Int4Rows rows;
  Tensor numbers;
  if (has_mins) {
    rows.scales = bounds.high.sub(bounds.low).div(15).to(at::kHalf);
    rows.mins = bounds.low.neg().to(at::kHalf);
    const Tensor inverse = inverse_of(rows.scales.to(at::kFloat)).unsqueeze(2);
    numbers = groups.add(rows.mins.to(at::kFloat).unsqueeze(2)).mul_(inverse).round_();
  } else {
    const Tensor largest = at::where(bounds.high.ge(bounds.low.neg()), bounds.high, bounds.low);
    rows.scales = largest.div(-8).to(at::kHalf);
    numbers = groups.mul(inverse_of(rows.scales.to(at::kFloat)).unsqueeze(2)).round_().add_(8);
  }
  const bool fits = rows.scales.isfinite().all().item<bool>() &&
                    (!has_mins || rows.mins.isfinite().all().item<bool>());
  CLEAVE_CHECK(fits, Code::kNumerics, what,
               " has values too large for int4, whose scales are fp16; choose another --dtype");
  const Tensor codes = numbers.clamp_(0, 15).to(at::kByte);
  const int64_t half = kInt4Group / 2;
  rows.codes = codes.narrow(2, 0, half)
                   .bitwise_or(codes.narrow(2, half, half).bitwise_left_shift(at::Scalar(4)))
                   .contiguous();
  return rows;
}

Int4Matrix to_matrix(const Int4Rows& rows, std::vector<Int4Part> parts) {
  const int64_t out = rows.codes.size(0);
  const auto groups = static_cast<int64_t>(parts.size());
  const bool has_mins = rows.mins.defined();
  const int64_t block = int4_block_bytes(has_mins);
  int64_t in = 0;
  for (const Int4Part& part : parts) in += part.count;
  const int64_t panels = num_int4_panels(out);
  Int4Matrix matrix{.blocks = at::empty({panels * groups * block}, at::kByte),
                    .parts = std::move(parts),
                    .has_mins = has_mins,
                    .in = in,
                    .out = out};
  auto* blocks = matrix.blocks.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kInt4Panel;
      const BlockWriter writer{rows, groups, first, std::min(kInt4Panel, out - first)};
      uint8_t* to = blocks + panel * groups * block;
      if (writer.count < kInt4Panel) std::memset(to, 0, static_cast<size_t>(groups * block));
      for (int64_t g = 0; g < groups; ++g) writer.write(g, to + g * block);
    }
  });
  return matrix;
}

Tensor int4_linear(const Tensor& x, const Int4Matrix& weight, const std::optional<Tensor>& bias,
                   const Tensor& largest) {
  const at::NoGradGuard no_grad;
  RECORD_USER_SCOPE("cleave::product");
  const int64_t count = c10::multiply_integers(x.sizes().begin(), x.sizes().end() - 1);
  const Tensor rows = x.reshape({count, weight.in}).contiguous();
  const QuantizedInput input = quantized(rows, weight, largest);
  auto shape = x.sizes().vec();
  shape.back() = weight.out;
  Tensor y = at::empty(shape, x.options());
  const Int4Job job{.rows = count,
                    .columns = weight.out,
                    .groups = static_cast<int64_t>(weight.parts.size()),
                    .has_mins = weight.has_mins,
                    .x = {.values = input.values(),
                          .scales = input.scales(),
                          .offsets = input.offsets(),
                          .totals = input.totals()},
                    .weight = weight.blocks.const_data_ptr<uint8_t>(),
                    .bias = bias ? bias->const_data_ptr<float>() : nullptr,
                    .out = y.mutable_data_ptr<float>()};
  const int64_t panel_bytes = job.groups * int4_block_bytes(job.has_mins);
  const int64_t grain = 1 + kGrainBytes / std::max<int64_t>(panel_bytes, 1);
  at::parallel_for(0, num_int4_panels(weight.out), grain,
                   [&](int64_t begin, int64_t end) { int4_products(job, begin, end); });
  return y;
}

}  // namespace cleave::inline kernels
