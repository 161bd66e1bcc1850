#include "cleave/torch_internals/storage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace cleave {
namespace {

TEST(Storage, MemoryThatReturns_IsReadByViewsAndSavedTensors) {
  const Tensor flat = at::full({6}, 2.0);
  const Tensor view = flat.narrow(0, 2, 3);
  const Tensor x = at::ones({3}).requires_grad_();
  const Tensor y = x * view;  // saves the view
  free_storage(flat);
  EXPECT_EQ(flat.storage().data(), nullptr);
  EXPECT_EQ(view.storage().data(), nullptr);

  const Tensor other = at::full({6}, 5.0);
  const void* memory = other.storage().data();
  move_storage(other, flat);
  EXPECT_EQ(flat.storage().data(), memory);
  EXPECT_EQ(other.storage().data(), nullptr);
  EXPECT_EQ(view.sum().item<float>(), 15);
  // autograd does not refuse the saved view: its version is the same.
  EXPECT_EQ(torch::autograd::grad({y.sum()}, {x})[0].sum().item<float>(), 15);
}

}  // namespace
}  // namespace cleave
