#include "cleave/torch_internals/onednn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cleave::onednn_test {
namespace {

// Small whole numbers, whose products and sums are exact in fp32: oneDNN and the oracle in int64
// have the same bits.
Tensor whole(at::IntArrayRef shape, int64_t step) {
  Tensor t = at::arange(at::ones(shape).numel(), at::kLong);
  return t.mul_(step).remainder_(7).sub_(3).view(shape);
}

TEST(OneDnn, Products_AreThoseOfTheMatrices) {
  const Tensor a = whole({2, 3, 5}, 3), b = whole({4, 5}, 5), bias = whole({4}, 2);
  const auto single = [](const Tensor& t) { return t.to(at::kFloat); };
  const Tensor want = a.matmul(b.t());
  EXPECT_TRUE(at::equal(onednn_linear(single(a), single(b), std::nullopt), single(want)));
  EXPECT_TRUE(at::equal(onednn_linear(single(a), single(b), single(bias)), single(want + bias)));
  const Tensor transposed = single(b.t().contiguous()).t();
  EXPECT_TRUE(at::equal(onednn_linear(single(a), transposed, std::nullopt), single(want)));
  const Tensor added = whole({2, 3, 4}, 4);
  EXPECT_TRUE(
      at::equal(onednn_linear_add(single(a), single(b), single(added)), single(want + added)));
}

}  // namespace
}  // namespace cleave::onednn_test
