#include "cleave/torch_internals/tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace cleave::tensor_test {
namespace {

struct Number : TensorRecord {
  int value = 0;
};
struct Other : TensorRecord {};

int number_on(const Tensor& t) {
  const auto* record = record_on<Number>(t);
  return record == nullptr ? -1 : record->value;
}

TEST(TensorRecord, Record_BelongsToTheTensorAndItsDetachedCopies) {
  const Tensor t = at::ones({2});
  EXPECT_EQ(number_on(t), -1);
  EXPECT_EQ(number_on(Tensor()), -1);
  change_record<Number>(t, [](Number& record) { record.value += 3; });
  EXPECT_EQ(number_on(t), 3);
  EXPECT_EQ(record_on<Other>(t), nullptr);
  const Tensor same = t, detached = t.detach();
  EXPECT_EQ(number_on(same), 3);
  EXPECT_EQ(number_on(detached), 3);
  EXPECT_EQ(number_on(t.clone()), -1);
  EXPECT_EQ(number_on(t + 1), -1);
  change_record<Number>(t, [](Number& record) { record.value += 3; });
  EXPECT_EQ(number_on(same), 6) << "a handle of the same tensor";
  EXPECT_EQ(number_on(detached), 3) << "a copy keeps what it had";
}

TEST(TensorRecord, Version_CountsChangesInPlaceAndNothingElse) {
  const Tensor t = at::ones({4});
  const uint32_t before = version_of(t);
  (void)(t * 2);
  (void)t.sum();
  EXPECT_EQ(version_of(t), before);
  t.add_(1);
  EXPECT_EQ(version_of(t), before + 1);
  t.narrow(0, 1, 2).mul_(2);
  EXPECT_EQ(version_of(t), before + 2);
  const at::NoGradGuard no_grad;
  t.zero_();
  EXPECT_EQ(version_of(t), before + 3);
}

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
}  // namespace cleave::tensor_test
