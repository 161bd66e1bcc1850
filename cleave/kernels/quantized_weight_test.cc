#include "cleave/kernels/quantized_weight.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/cpu/dequantize.h"

namespace cleave::quantized_weight_test {
namespace {

Tensor as_tensor(const std::array<float, 16>& numbers) {
  return at::tensor(at::ArrayRef<float>(numbers), at::kFloat);
}

// Oracle: torch's multiplication in fp32, rounded once. 37 columns leave a part of a vector.
TEST(QuantizedWeight, DequantizedInt8_IsTheProductOfValueAndScaleInEveryType) {
  const Tensor values =
      at::arange(0, 5 * 37, at::kInt).mul(53).remainder(255).sub(127).to(at::kChar).view({5, 37});
  for (const int row_dim : {0, 1}) {
    const Tensor scales = at::arange(1, row_dim == 0 ? 6 : 38, at::kFloat).div(30);
    const QuantizedWeight weight{.shape = {5, 37},
                                 .row_dim = row_dim,
                                 .values = values,
                                 .scales = scales.unsqueeze(1 - row_dim),
                                 .block_of = {}};
    const Tensor exact = values.to(at::kFloat) * weight.scales;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const Tensor got = dequantize(weight, type);
      EXPECT_EQ(got.scalar_type(), type);
      EXPECT_TRUE(at::equal(got, exact.to(type))) << row_dim << ' ' << type;
    }
  }
}

// Rounding to nearest changes an element by at most half a scale.
TEST(QuantizedWeight, Int8_IsWithinHalfAScaleAndRepresentsTheLargest) {
  const Tensor rows = at::stack({at::linspace(-3, 2, 21), at::zeros({21}), at::full({21}, 1e-35)});
  const Tensor scales = int8_scales(rows.abs().amax(1, true));
  const Tensor values = to_int8_values(rows, scales);
  const Tensor back = dequantize(
      {.shape = {3, 21}, .values = values, .scales = scales, .block_of = {}}, at::kFloat);
  EXPECT_EQ(values[0][0].item<int>(), -127);
  EXPECT_LE((back - rows)[0].abs().max().item<float>(), 3.0F / 127 / 2 * 1.0001F);
  EXPECT_TRUE(back.narrow(0, 1, 2).eq(0).all().item<bool>());
  EXPECT_EQ(scales[1].item<float>(), 1);
}

// Oracle: the construction of arXiv:2305.14314, section 3: eight quantiles above 0 and seven below,
// at equal distances of probability up to 0.9677083, divided by the largest.
TEST(QuantizedWeight, Nf4Numbers_AreQuantilesOfTheNormalDistribution) {
  const auto quantiles = [](int count) {
    const Tensor p = at::linspace(0.9677083, 0.5, count + 1, at::kDouble).narrow(0, 0, count);
    return at::erfinv(2 * p - 1) * std::sqrt(2.0);
  };
  const Tensor above = quantiles(8), below = quantiles(7);
  const Tensor all =
      std::get<0>(at::cat({above, at::zeros({1}, at::kDouble), -below}).sort()) / above.max();
  EXPECT_LE((as_tensor(kNf4Numbers) - all).abs().max().item<double>(), 1e-6);
}

/// A matrix [4, 150] or [150, 4], whose inputs are those of a rank that has not the whole of the
/// first and the third block.
struct Nf4Case {
  explicit Nf4Case(int dim)
      : row_dim(dim), block_of(at::arange(40, 190, at::kInt).div(64, "floor").to(at::kInt)) {
    matrix = at::arange(0, 600, at::kFloat).mul(0.37).sin().mul(0.02).view({4, 150});
    matrix = matrix * at::arange(1, 5, at::kFloat).unsqueeze(1);
    matrix[1].narrow(0, 24, 64).zero_();  // a block of zeros
    if (dim == 1) matrix = matrix.t().contiguous();
  }

  [[nodiscard]] Nf4Elements elements(int64_t begin, int64_t end) const {
    return {.elements = matrix.flatten().narrow(0, begin, end - begin),
            .begin = begin,
            .shape = matrix.sizes().vec(),
            .row_dim = row_dim,
            .block_of = block_of};
  }
  /// The scale of each element, by torch.
  [[nodiscard]] Tensor scale_of_each() const {
    std::vector<Tensor> out;
    for (const auto& [from, count] : {std::pair{0, 24}, {24, 64}, {88, 62}}) {
      const Tensor part = matrix.narrow(1 - row_dim, from, count);
      out.push_back(part.abs().amax(1 - row_dim, true).expand_as(part));
    }
    return at::cat(out, 1 - row_dim);
  }

  int row_dim;
  Tensor block_of, matrix;
};

// Oracle: torch's search for the nearest of the 16 numbers, in fp64.
TEST(QuantizedWeight, Nf4_IsTheNearestNumberTimesTheLargestOfTheBlock) {
  for (const int row_dim : {0, 1}) {
    const Nf4Case c(row_dim);
    const Tensor scales = nf4_largest(c.elements(0, 600), 3);
    const Tensor of_each = c.scale_of_each(), divisor = of_each.clamp_min(1e-30).to(at::kDouble);
    const Tensor numbers = as_tensor(kNf4Numbers);
    const Tensor distance = (c.matrix.to(at::kDouble) / divisor).unsqueeze(2) - numbers;
    const Tensor want = numbers.index({distance.abs().argmin(2)}) * of_each;
    const QuantizedWeight weight{.form = QuantizedForm::kNf4,
                                 .shape = c.matrix.sizes().vec(),
                                 .row_dim = row_dim,
                                 .values = to_nf4_values(c.elements(0, 600), scales),
                                 .scales = scales,
                                 .block_of = c.block_of};
    EXPECT_EQ(weight.values.numel(), 300);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      EXPECT_TRUE(at::equal(dequantize(weight, type), want.to(type))) << row_dim << ' ' << type;
    }
  }
}

// An odd width, so that rows begin in the middle of a byte, and an odd number of elements.
TEST(QuantizedWeight, Nf4OfOddRows_IsReadAsByTorch) {
  for (const int row_dim : {0, 1}) {
    const Tensor matrix = at::arange(0, 5 * 71, at::kFloat).mul(1.7).cos().view({5, 71});
    const int64_t inputs = matrix.size(1 - row_dim);
    const Nf4Elements elements{
        .elements = matrix.flatten(),
        .shape = {5, 71},
        .row_dim = row_dim,
        .block_of = at::arange(inputs, at::kInt).div(64, "floor").to(at::kInt)};
    const Tensor scales = nf4_largest(elements, row_dim == 0 ? 2 : 1);
    const QuantizedWeight weight{.form = QuantizedForm::kNf4,
                                 .shape = {5, 71},
                                 .row_dim = row_dim,
                                 .values = to_nf4_values(elements, scales),
                                 .scales = scales,
                                 .block_of = elements.block_of};
    const Tensor numbers = nf4_numbers(weight.values, 5 * 71).view({5, 71});
    const Tensor want = numbers * scales.index_select(1 - row_dim, elements.block_of);
    EXPECT_TRUE(at::equal(dequantize(weight, at::kFloat), want)) << row_dim;
    // The widest gap between two numbers is 0.3038, from -1 to -0.6962.
    EXPECT_LE((want - matrix).abs().max().item<float>(), 0.3039F / 2);
  }
}

// Oracle: bytes and scales of bitsandbytes 0.50.2, quantize_4bit(x, blocksize=64,
// quant_type='nf4'), which has the first element of a byte in the upper bits.
TEST(QuantizedWeight, Nf4_HasTheBytesOfBitsandbytes) {
  constexpr std::array<uint8_t, 128> kBytes{
      120, 173, 238, 232, 134, 66,  16,  101, 87,  173, 249, 171, 185, 82,  100, 50,  36,  120, 155,
      222, 237, 118, 82,  16,  6,   103, 172, 239, 154, 168, 82,  21,  67,  52,  124, 138, 205, 220,
      151, 83,  33,  17,  103, 156, 239, 248, 152, 99,  16,  84,  69,  123, 233, 188, 203, 149, 100,
      50,  18,  71,  139, 222, 238, 135, 100, 33,  6,   86,  123, 223, 154, 186, 133, 38,  67,  35,
      72,  138, 205, 238, 199, 100, 33,  16,  102, 122, 222, 249, 169, 133, 33,  84,  51,  88,  200,
      172, 221, 200, 117, 50,  17,  23,  121, 206, 255, 137, 133, 49,  5,   68,  88,  190, 154, 204,
      184, 70,  67,  33,  36,  121, 189, 238, 232, 118, 49,  0,   101, 104};
  constexpr std::array<float, 4> kScales{0.13965368270874023F, 0.13604317605495453F,
                                         0.13996408879756927F, 0.13746437430381775F};
  std::vector<float> x;
  for (int i = 0; i < 256; ++i) {
    x.push_back(static_cast<float>(std::sin(i * 0.37) * 0.02 * (1 + i % 7)));
  }
  const Nf4Elements elements{.elements = at::tensor(x, at::kFloat),
                             .shape = {2, 128},
                             .block_of = at::arange(128, at::kInt).div(64, "floor").to(at::kInt)};
  const Tensor scales = nf4_largest(elements, 2);
  EXPECT_TRUE(at::equal(scales.flatten(), at::tensor(at::ArrayRef<float>(kScales), at::kFloat)));
  const Tensor values = to_nf4_values(elements, scales);
  for (size_t i = 0; i < kBytes.size(); ++i) {
    const auto swapped = static_cast<uint8_t>(kBytes[i] << 4U | kBytes[i] >> 4U);
    EXPECT_EQ(static_cast<uint8_t>(values[static_cast<int64_t>(i)].item<int8_t>()), swapped) << i;
  }
}

// Oracle: the whole matrix, and NaN where an element is not a number.
TEST(QuantizedWeight, Nf4OfARange_HasTheLargestOfItsElementsAndTheBytesOfTheWhole) {
  for (const int row_dim : {0, 1}) {
    Nf4Case c(row_dim);
    const Tensor whole = nf4_largest(c.elements(0, 600), 3);
    const Tensor bytes = to_nf4_values(c.elements(0, 600), whole);
    Tensor largest = at::zeros_like(whole);
    std::vector<Tensor> parts;
    for (const auto& [begin, end] : {std::pair{0, 202}, {202, 202}, {202, 450}, {450, 600}}) {
      largest = at::maximum(largest, nf4_largest(c.elements(begin, end), 3));
      parts.push_back(to_nf4_values(c.elements(begin, end), whole));
    }
    EXPECT_TRUE(at::equal(largest, whole)) << row_dim;
    EXPECT_TRUE(at::equal(at::cat(parts), bytes)) << row_dim;
    c.matrix.flatten()[7] = std::nanf("");
    EXPECT_TRUE(nf4_largest(c.elements(0, 600), 3).isinf().any().item<bool>());
  }
}

}  // namespace
}  // namespace cleave::quantized_weight_test
