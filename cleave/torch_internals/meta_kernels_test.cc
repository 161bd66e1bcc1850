#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/torch_internals/meta_device.h"

namespace cleave::meta_kernels_test {
namespace {

// The classifier of imdb_bert has a relu, and a forecast runs its backward too.
TEST(MetaKernels, Relu_HasItsInputsShapeForwardAndBackward) {
  provide_meta_kernels();
  const at::Tensor x = at::empty({2, 3}, at::device(at::kMeta)).requires_grad_();
  const at::Tensor y = at::relu(x);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(x.grad().is_meta());
}

}  // namespace
}  // namespace cleave::meta_kernels_test
