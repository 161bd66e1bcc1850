#include "cleave/kernels/int8_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cleave::int8_weight_test {
namespace {

// Oracle: torch's multiplication in fp32, rounded once. 37 columns leave a part of a vector.
TEST(Int8Weight, Dequantized_IsTheProductOfValueAndScaleInEveryType) {
  const Tensor values =
      at::arange(0, 5 * 37, at::kInt).mul(53).remainder(255).sub(127).to(at::kChar);
  for (const int row_dim : {0, 1}) {
    const Int8Weight weight{.values = values.view({5, 37}),
                            .scales = at::arange(1, row_dim == 0 ? 6 : 38, at::kFloat).div(30),
                            .row_dim = row_dim};
    const Tensor exact = weight.values.to(at::kFloat) * weight.scales.unsqueeze(1 - row_dim);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const Tensor got = dequantize(weight, type);
      EXPECT_EQ(got.scalar_type(), type);
      EXPECT_TRUE(at::equal(got, exact.to(type))) << row_dim << ' ' << type;
    }
  }
}

// Rounding to nearest changes an element by at most half a scale.
TEST(Int8Weight, Quantized_IsWithinHalfAScaleAndRepresentsTheLargest) {
  const Tensor rows = at::stack({at::linspace(-3, 2, 21), at::zeros({21}), at::full({21}, 1e-35)});
  const Tensor scales = int8_scales(rows.abs().amax(1));
  const Tensor values = to_int8_values(rows, scales.unsqueeze(1));
  const Tensor back = dequantize({.values = values, .scales = scales, .row_dim = 0}, at::kFloat);
  EXPECT_EQ(values[0][0].item<int>(), -127);
  EXPECT_LE((back - rows)[0].abs().max().item<float>(), 3.0F / 127 / 2 * 1.0001F);
  EXPECT_TRUE(back.narrow(0, 1, 2).eq(0).all().item<bool>());
  EXPECT_EQ(scales[1].item<float>(), 1);
}

}  // namespace
}  // namespace cleave::int8_weight_test
