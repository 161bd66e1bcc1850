#include "cleave/torch_internals/deferred.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cleave::deferred_test {
namespace {

// takes() knows the nodes of casts and transposes by the names that libtorch gives them.
TEST(Deferred, LeafItsCastAndItsTranspose_AreTaken) {
  const Tensor leaf = at::ones({2, 3}).requires_grad_();
  EXPECT_TRUE(DeferredGradients::takes(leaf));
  EXPECT_TRUE(DeferredGradients::takes(leaf.t()));
  EXPECT_TRUE(DeferredGradients::takes(leaf.to(at::kBFloat16)));
  EXPECT_TRUE(DeferredGradients::takes(leaf.to(at::kBFloat16).t()));
  EXPECT_FALSE(DeferredGradients::takes(leaf * 2));
  EXPECT_FALSE(DeferredGradients::takes((leaf * 2).t()));
}

TEST(Deferred, GradientOfATransposedCast_ReachesTheLeaf) {
  const Tensor leaf = at::ones({2, 3}).requires_grad_();
  const Tensor weight = leaf.to(at::kBFloat16).t();
  DeferredGradients deferred;
  deferred.add(weight, [] { return at::arange(6).to(at::kBFloat16).view({3, 2}); });
  EXPECT_FALSE(leaf.grad().defined());
  deferred.run();
  EXPECT_TRUE(at::equal(leaf.grad(), at::arange(6).to(at::kFloat).view({3, 2}).t()));
}

}  // namespace
}  // namespace cleave::deferred_test
