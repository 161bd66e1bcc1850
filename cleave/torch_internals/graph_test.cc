#include "cleave/torch_internals/graph.h"

#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/torch_internals/node.h"

namespace cleave::graph_test {
namespace {

using testing::ElementsAre;

Tensor leaf(double value) {
  return at::full({3}, value).requires_grad_();
}

TEST(Graph, WorkAfterBackward_RunsOnceWhenAllGradientsAreThere) {
  const Tensor x = leaf(2);
  std::vector<float> seen;
  const Tensor y = differentiable(
      "first", x * 3, [](const Tensor& t) { return t.clone(); },
      [&](const Tensor& gradient) {
        after_backward([&seen, x, caller = std::this_thread::get_id()] {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          seen.push_back(x.grad().sum().item<float>());
        });
        EXPECT_FALSE(x.grad().defined());
        return gradient;
      });
  y.sum().backward();
  EXPECT_THAT(seen, ElementsAre(9));
}

TEST(Graph, GraphEnd_ComputesTheGradientsWithoutTheTensor) {
  const Tensor x = leaf(2);
  EXPECT_FALSE(GraphEnd().is_valid());
  Tensor y = x * x + 1;  // backward does not read the sum
  const GraphEnd end(y);
  EXPECT_TRUE(end.is_valid());
  const auto memory = y.storage().getWeakStorageImpl();
  y = Tensor();
  EXPECT_TRUE(memory.expired());
  backward_from({end}, {at::ones({3})});
  EXPECT_EQ(x.grad().sum().item<float>(), 12);
  EXPECT_THROW(backward_from({end}, {at::ones({3})}), c10::Error) << "the graph is free";
}

TEST(Graph, TakenGradients_LeaveTheLeafAfterEachBackward) {
  const Tensor x = leaf(2);
  std::vector<float> sums;
  take_gradients(x, [&](const Tensor& gradient) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    sums.push_back(gradient.sum().item<float>());
  });
  (x * 3 + x).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  (x * 5).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT(sums, ElementsAre(12, 15));
}

TEST(Graph, NodeOfAnEarlierTimeOrAnotherThread_IsNamed) {
  const Tensor x = leaf(2), before = x.cos();
  const uint64_t first = next_node_number();
  EXPECT_EQ(node_made_before(first, x, ""), std::nullopt);
  EXPECT_EQ(node_made_before(first, x.exp() * x, ""), std::nullopt);
  EXPECT_EQ(node_made_before(first, before.exp(), ""), "CosBackward0");
  EXPECT_EQ(node_made_before(first, before.exp(), "CosBackward0"), std::nullopt);
  Tensor there;
  std::thread([&] {
    for (int i = 0; i < 100; ++i) there = x.sin();
  }).join();
  EXPECT_EQ(node_made_before(first, there.exp(), ""), "SinBackward0");
}

}  // namespace
}  // namespace cleave::graph_test
