#include "cleave/torch_internals/node.h"

#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cleave::node_test {
namespace {

TEST(Node, OutputThatNobodyUsed_HasAGradientOfZeros) {
  const Tensor x = at::ones({2}).requires_grad_();
  const Tensor used = at::ones({2}), unused = at::ones({3});
  connect("two", {x}, {used, unused}, [](variable_list&& grads) -> variable_list {
    EXPECT_TRUE(at::equal(grads[1], at::zeros({3})));
    EXPECT_FALSE(at::GradMode::is_enabled());
    return {grads[0] * 4};
  });
  EXPECT_EQ(used.grad_fn()->name(), "two");
  used.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 4)));
}

TEST(Node, Backward_FreesWhatTheNodeKeeps) {
  const Tensor x = at::ones({2}).requires_grad_();
  const auto kept = std::make_shared<int>(1);
  const Tensor y = differentiable(
      "keeps", x, [](const Tensor& t) { return t * 2; },
      [kept](const Tensor& gradient) { return gradient * 2; });
  EXPECT_EQ(kept.use_count(), 2);
  y.sum().backward();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace cleave::node_test
