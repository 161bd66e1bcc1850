#include "cleave/torch_internals/meta_device.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

namespace cleave::inline torch_internals {
namespace {

thread_local int64_t live_bytes = 0;
thread_local int64_t peak_bytes = 0;

void forget(void* context) {
  live_bytes -= static_cast<int64_t>(reinterpret_cast<intptr_t>(context));
}

/// Allocates nothing. The deleter's context pointer holds the number of bytes.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    live_bytes += static_cast<int64_t>(bytes);
    peak_bytes = std::max(peak_bytes, live_bytes);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a number, never read through
    auto* context = reinterpret_cast<void*>(static_cast<intptr_t>(bytes));
    return {nullptr, context, &forget, c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}
};

}  // namespace

MetaMemory::MetaMemory() {
  static CountingAllocator allocator;
  [[maybe_unused]] static const bool is_set = [] {
    c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/1);
    return true;
  }();
  live_bytes = 0;
  peak_bytes = 0;
}

int64_t MetaMemory::live() const {
  return live_bytes;
}

int64_t MetaMemory::peak() const {
  return peak_bytes;
}

void MetaMemory::reset_peak() {
  peak_bytes = live_bytes;
}

namespace {

using c10::IValue;
using torch::jit::Stack;

at::Tensor tensor_at(const Stack& stack, size_t place, size_t count) {
  const IValue& value = torch::jit::peek(stack, place, count);
  return value.isNone() ? at::Tensor() : value.toTensor();
}

/// self, dim, index -> result
void index_select(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor self = tensor_at(*stack, 0, 3);
  const int64_t dim = torch::jit::peek(*stack, 1, 3).toInt();
  auto sizes = self.sizes().vec();
  const auto place = static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()));
  if (!sizes.empty()) sizes[place] = tensor_at(*stack, 2, 3).numel();
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, at::empty(sizes, self.options()));
}

/// self -> result
void relu(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor self = tensor_at(*stack, 0, 1);
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, at::empty_like(self));
}

/// grad, indices, num_weights, padding_idx, scale_grad_by_freq -> result
void embedding_dense_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor grad = tensor_at(*stack, 0, 5);
  const int64_t num_weights = torch::jit::peek(*stack, 2, 5).toInt();
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, at::empty({num_weights, grad.size(-1)}, grad.options()));
}

/// input, normalized_shape, weight?, bias?, eps -> result, mean, rstd
void native_layer_norm(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor input = tensor_at(*stack, 0, 5);
  const size_t num_normed = torch::jit::peek(*stack, 1, 5).toListRef().size();
  auto sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(num_normed), sizes.end(), 1);
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, at::empty_like(input), at::empty(sizes, input.options()),
                   at::empty(sizes, input.options()));
}

/// grad, input, normalized_shape, mean, rstd, weight?, bias?, output_mask -> gradients of input,
/// weight and bias
void native_layer_norm_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor like[] = {tensor_at(*stack, 1, 8), tensor_at(*stack, 5, 8),
                             tensor_at(*stack, 6, 8)};
  const c10::List<bool> wanted = torch::jit::peek(*stack, 7, 8).toBoolList();
  torch::jit::drop(*stack, 8);
  for (size_t i = 0; i < 3; ++i) {
    torch::jit::push(*stack, wanted.get(i) ? at::empty_like(like[i]) : at::Tensor());
  }
}

}  // namespace

void provide_meta_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                __LINE__);
  [[maybe_unused]] static const bool is_provided = [] {
    library.impl("index_select", torch::CppFunction::makeFromBoxedFunction<&index_select>());
    library.impl("relu", torch::CppFunction::makeFromBoxedFunction<&relu>());
    library.impl("embedding_dense_backward",
                 torch::CppFunction::makeFromBoxedFunction<&embedding_dense_backward>());
    library.impl("native_layer_norm",
                 torch::CppFunction::makeFromBoxedFunction<&native_layer_norm>());
    library.impl("native_layer_norm_backward",
                 torch::CppFunction::makeFromBoxedFunction<&native_layer_norm_backward>());
    return true;
  }();
}

}  // namespace cleave::inline torch_internals
