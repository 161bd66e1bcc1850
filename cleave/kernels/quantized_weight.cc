#include "cleave/kernels/quantized_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/kernels/cpu/dequantize.h"

namespace cleave::inline kernels {
namespace {

/// Rows with a smaller magnitude are treated as zeros, so that dividing by the scale stays finite.
constexpr double kMinRowMagnitude = 1e-30;
constexpr int64_t kGrainElements = 32768;

/// Where the nearest number changes from one to the next.
std::array<float, 15> middles_of(const std::array<float, 16>& numbers) {
  std::array<float, 15> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = (numbers[i] + numbers[i + 1]) / 2;
  return out;
}

/// The index of the number that is nearest to x.
uint32_t nearest(float x, const std::array<float, 15>& middles) {
  uint32_t index = x > middles[7] ? 8U : 0U;
  index += x > middles[index + 3] ? 4U : 0U;
  index += x > middles[index + 1] ? 2U : 0U;
  return index + (x > middles[index] ? 1U : 0U);
}

/// Finds the scale of each element of a matrix in kNf4.
class ScalePlaces {
 public:
  ScalePlaces(const Nf4Elements& part, int64_t num_blocks)
      : width_(part.shape.at(1)),
        num_blocks_(num_blocks),
        has_column_scales_(part.row_dim == 1),
        block_of_(part.block_of.const_data_ptr<int32_t>()) {}

  /// The index of the scale of the flattened matrix's element.
  [[nodiscard]] int64_t of(int64_t element) const {
    const int64_t row = element / width_, column = element % width_;
    return has_column_scales_ ? block_of_[row] * width_ + column
                              : row * num_blocks_ + block_of_[column];
  }

 private:
  int64_t width_, num_blocks_;
  bool has_column_scales_;
  const int32_t* block_of_;
};

Tensor dequantize_by_aten(const QuantizedWeight& weight, Tensor& out) {
  if (weight.form == QuantizedForm::kInt8) return at::mul_out(out, weight.values, weight.scales);
  const Tensor numbers = nf4_numbers(weight.values, out.numel()).view(weight.shape);
  const Tensor scales = weight.scales.index_select(1 - weight.row_dim, weight.block_of);
  return at::mul_out(out, numbers, scales);
}

}  // namespace

std::string_view name(QuantizedForm form) {
  return form == QuantizedForm::kInt8 ? "int8" : "nf4";
}

Tensor int8_scales(const Tensor& largest) {
  const at::NoGradGuard no_grad;
  const Tensor scales = largest.to(at::kFloat) / 127;
  return scales.masked_fill(largest.lt(kMinRowMagnitude), 1);
}

Tensor to_int8_values(const Tensor& x, const Tensor& scales) {
  const at::NoGradGuard no_grad;
  return x.to(at::kFloat).div(scales).round_().clamp_(-127, 127).to(at::kChar);
}

Tensor nf4_largest(const Nf4Elements& part, int64_t num_blocks) {
  std::vector<int64_t> shape = part.shape;
  shape.at(part.row_dim == 1 ? 0 : 1) = num_blocks;
  Tensor out = at::zeros(shape, at::kFloat);
  const int64_t count = part.elements.numel();
  if (count == 0) return out;
  const ScalePlaces places(part, num_blocks);
  const float* from = part.elements.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const auto scan = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float& largest = to[places.of(part.begin + i)];
      const float magnitude =
          std::isfinite(from[i]) ? std::abs(from[i]) : std::numeric_limits<float>::infinity();
      largest = std::max(largest, magnitude);
    }
  };
  // Elements of one row may share a scale, and with a scale for each column those of all rows.
  const int64_t width = part.shape.at(1), first = part.begin / width;
  if (part.row_dim == 1) {
    scan(0, count);
    return out;
  }
  const int64_t rows = (part.begin + count + width - 1) / width - first;
  at::parallel_for(0, rows, 1 + kGrainElements / width, [&](int64_t begin, int64_t end) {
    scan(std::max<int64_t>((first + begin) * width - part.begin, 0),
         std::min((first + end) * width - part.begin, count));
  });
  return out;
}

Tensor to_nf4_values(const Nf4Elements& part, const Tensor& scales) {
  const int64_t count = part.elements.numel();
  Tensor out = at::empty({(count + 1) / 2}, at::kChar);
  if (count == 0) return out;
  const ScalePlaces places(part, scales.size(1 - part.row_dim));
  const std::array<float, 15> middles = middles_of(kNf4Numbers);
  const float* from = part.elements.const_data_ptr<float>();
  const float* scale_at = scales.const_data_ptr<float>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  const auto index_of = [&](int64_t i) {
    const float scale = scale_at[places.of(part.begin + i)];
    return nearest(scale > 0 ? from[i] / scale : 0.0F, middles);
  };
  at::parallel_for(0, out.numel(), kGrainElements / 2, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const uint32_t low = index_of(2 * b);
      const uint32_t high = 2 * b + 1 < count ? index_of(2 * b + 1) : 0;
      to[b] = static_cast<int8_t>(low | high << 4U);
    }
  });
  return out;
}

Tensor nf4_numbers(const Tensor& values, int64_t count) {
  const at::NoGradGuard no_grad;
  const Tensor bytes = values.view(at::kByte);
  const Tensor indices =
      at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 1).flatten();
  const Tensor numbers = at::tensor(at::ArrayRef<float>(kNf4Numbers), at::kFloat);
  return numbers.to(values.device(), /*non_blocking=*/true)
      .index_select(0, indices.narrow(0, 0, count).to(at::kInt));
}

Tensor dequantize(const QuantizedWeight& weight, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const Tensor& values = weight.values;
  Tensor out = at::empty(weight.shape, values.options().dtype(type));
  if (values.is_meta() || out.numel() == 0) return out;
  if (!values.is_cpu() || (type != at::kFloat && type != at::kBFloat16)) {
    return dequantize_by_aten(weight, out);
  }
  const bool is_nf4 = weight.form == QuantizedForm::kNf4;
  const DequantizeJob job{.width = out.size(1),
                          .is_bf16 = type == at::kBFloat16,
                          .has_column_scales = weight.row_dim == 1,
                          .values = values.const_data_ptr<int8_t>(),
                          .scales = weight.scales.const_data_ptr<float>(),
                          .block_of = is_nf4 ? weight.block_of.const_data_ptr<int32_t>() : nullptr,
                          .num_blocks = weight.scales.size(1 - weight.row_dim),
                          .to = out.mutable_data_ptr()};
  at::parallel_for(0, out.size(0), 1 + kGrainElements / job.width,
                   [&](int64_t begin, int64_t end) { dequantize_rows(job, begin, end); });
  return out;
}

}  // namespace cleave::inline kernels
