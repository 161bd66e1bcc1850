#include "cleave/torch_internals/node.h"

#include <memory>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/thrown.h"

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

// Backward runs without grad mode, so its result would be taken for a constant.
TEST(Node, GradientOfItsGradient_IsRefused) {
  const Tensor x = at::full({2}, 3.0).requires_grad_();
  const Tensor y = differentiable(
      "square", x, [](const Tensor& t) { return t * t; },
      [x](const Tensor& gradient) { return gradient * 2 * x; });
  const auto gradients = [&](bool create_graph) {
    return torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, create_graph);
  };
  EXPECT_TRUE(at::equal(gradients(false)[0], at::full({2}, 6.0)));
  const Error error = test::thrown_by([&] { gradients(true); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), testing::StartsWith("square does not support double backward"));
}

TEST(SavedInput, ChangedInPlace_IsRefused) {
  Tensor x = at::ones({2, 3});
  const SavedInput saved("norm", x), of_view("norm", x[0]);
  EXPECT_TRUE(saved.get().equal(x));
  x[1].add_(1);
  for (const SavedInput* changed : {&saved, &of_view}) {
    const Error error = test::thrown_by([&] { (void)changed->get(); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), testing::HasSubstr("was changed in place after forward read it"));
  }
}

}  // namespace
}  // namespace cleave::node_test
