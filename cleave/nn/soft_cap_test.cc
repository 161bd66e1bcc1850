#include "cleave/nn/soft_cap.h"

#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace cleave::soft_cap_test {
namespace {

TEST(SoftCap, ValuesAndSlopes_AreThoseOfTheFormula) {
  constexpr double kCap = 2;
  const std::vector<double> numbers = {-1e4, -3, -0.01, 0, 0.5, 2, 1e4, INFINITY};
  // Values of up to kCap are rounded three times, slopes depend on two such values.
  for (const auto& [type, bound] :
       {std::pair{at::kDouble, 1e-14}, {at::kFloat, 1e-6}, {at::kBFloat16, std::ldexp(1, -6)}}) {
    const Tensor x = at::tensor(numbers, at::kDouble).to(type).requires_grad_();
    const Tensor y = soft_cap(x, kCap);
    EXPECT_EQ(y.scalar_type(), type);
    const Tensor slopes = torch::autograd::grad({y.sum()}, {x})[0];
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      const double t = std::tanh(x[place].item<double>() / kCap);
      EXPECT_NEAR(y[place].item<double>(), kCap * t, bound) << numbers[i];
      EXPECT_NEAR(slopes[place].item<double>(), 1 - t * t, bound) << numbers[i];
    }
  }
}

TEST(SoftCap, NaN_StaysNaN) {
  EXPECT_TRUE(soft_cap(at::full({3}, NAN), 1).isnan().all().item<bool>());
}

}  // namespace
}  // namespace cleave::soft_cap_test
