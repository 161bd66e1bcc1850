// Operations of the fake device: allocation, views and copies; all others run the CPU's kernel on
// the same memory. As on a GPU, tensors of several devices do not mix: only tensors of no dims may
// be the CPU's.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tests/fake_device/device.h"
#include "tests/fake_device/memory.h"
#include "tests/fake_device/stream.h"

namespace cleave::fake_device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::IValue;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_here(const Tensor& t) {
  return t.device().type() == c10::kPrivateUse1;
}

c10::Device device_or_current(std::optional<c10::Device> device) {
  const int index = device && device->has_index() ? device->index() : current_device();
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &allocator(), kKeys,
                                   type.value_or(at::get_default_dtype_as_scalartype()), format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<c10::Device> device,
                     std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys,
                                           type.value_or(at::get_default_dtype_as_scalartype()));
}

const Tensor& resize_(const Tensor& self, IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const int64_t count = self.storage_offset() + c10::multiply_integers(sizes);
  const auto bytes = static_cast<size_t>(count * self.element_size());
  const c10::Storage& storage = self.storage();
  if (bytes > storage.nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr data = allocator().allocate(bytes);
    std::memcpy(kernel_address(data.get()), kernel_address(storage.data()), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

Tensor& set_(Tensor& self, c10::Storage storage, int64_t offset, IntArrayRef sizes,
             IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return self;
}

/// A copy to pinned memory ends when the stream is waited for. Until then the host reads NaN.
void copy_later(const Tensor& to, const Tensor& from) {
  const Tensor values = kernel_view(from).to(to.scalar_type()).expand(to.sizes()).clone();
  std::memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
  enqueue(from.device().index(), StreamId::kDefault, {}, [to, values] {
    const at::NoGradGuard no_grad;
    to.copy_(values);
  });
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (self.numel() == 0) return self;
  if (is_here(self) && is_here(from)) {
    TORCH_CHECK(self.device() == from.device(), "fake device: copy between devices");
  } else if (is_here(self)) {
    // CUDA copies pageable memory aside before it returns, and so waits only if the caller wants
    // it.
    if (!non_blocking) count(self.device().index(), Wait::kUpload);
  } else if (non_blocking && self.is_contiguous() && is_pinned(self.const_data_ptr())) {
    copy_later(self, from);
    return self;
  } else {
    const int device = from.device().index();
    count(device, Wait::kRead);
    run_until(last_event(device, StreamId::kDefault));
  }
  kernel_view(self).copy_(kernel_view(from));
  return self;
}

at::Scalar local_scalar_dense(const Tensor& self) {
  const int device = self.device().index();
  count(device, Wait::kRead);
  run_until(last_event(device, StreamId::kDefault));
  return kernel_view(self).item();
}

/// Whether a GPU's host waits for the operation, since it needs the values: for the size of a
/// result, or for a result that is not a tensor.
bool reads_values(const c10::FunctionSchema& schema) {
  constexpr std::array<std::string_view, 7> kNames{
      "aten::nonzero",    "aten::masked_select",     "aten::_unique2",          "aten::bincount",
      "aten::unique_dim", "aten::repeat_interleave", "aten::unique_consecutive"};
  if (std::find(kNames.begin(), kNames.end(), schema.name()) != kNames.end()) return true;
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& r) {
    const auto kind = r.type()->kind();
    return kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;
  });
}

/// One call of an operation on the memory of a device.
class HostCall {
 public:
  explicit HostCall(const c10::OperatorHandle& op) : schema_(op.schema()), op_(op) {}

  void run(torch::jit::Stack& stack) {
    const size_t num = schema_.arguments().size();
    given_ = {stack.end() - static_cast<std::ptrdiff_t>(num), stack.end()};
    stack.resize(stack.size() - num);
    for (const IValue& value : given_) stack.push_back(converted(value));
    TORCH_CHECK(device_, "fake device: ", schema_.name(), " has no tensor and no device");
    const c10::DeviceGuard guard(*device_);
    if (reads_values(schema_)) count(device_->index(), Wait::kRead);
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    write_back();
    const size_t first = stack.size() - schema_.returns().size();
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      stack[first + i] = returned(schema_.returns()[i], stack[first + i]);
    }
  }

 private:
  struct View {
    Tensor given, view;
  };

  Tensor view_of(const Tensor& t) {
    if (!t.defined()) return t;
    if (!is_here(t)) {
      TORCH_CHECK(t.dim() == 0, "fake device: ", schema_.name(), " mixes a tensor on ", t.device(),
                  " with one on the device");
      return t;
    }
    TORCH_CHECK(!device_ || !device_->has_index() || *device_ == t.device(),
                "fake device: ", schema_.name(), " mixes ", *device_, " with ", t.device());
    device_ = t.device();
    for (const View& known : views_) {
      if (known.given.is_same(t)) return known.view;
    }
    views_.push_back({t, kernel_view(t)});
    return views_.back().view;
  }

  IValue converted(const IValue& value) {
    if (value.isTensor()) return view_of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> out;
      for (const Tensor& t : value.toTensorVector()) out.push_back(view_of(t));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
        out.push_back(t ? std::optional(view_of(*t)) : std::nullopt);
      }
      return out;
    }
    if (value.isDevice()) {
      device_ = device_or_current(value.toDevice());
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  /// A kernel may resize its outputs.
  void write_back() {
    for (const View& v : views_) {
      const bool is_moved =
          v.view.numel() > 0 && v.view.const_data_ptr() != kernel_address(v.given.const_data_ptr());
      if (!is_moved && v.view.sizes() == v.given.sizes()) continue;
      resize_(v.given, v.view.sizes(), std::nullopt);
      kernel_view(v.given).copy_(v.view);
    }
  }

  Tensor on_device(const Tensor& result) const {
    if (!result.defined()) return result;
    for (const View& v : views_) {
      if (v.view.is_same(result)) return v.given;
      TORCH_CHECK(result.numel() == 0 || !result.storage().is_alias_of(v.view.storage()),
                  "fake device: ", schema_.name(), " makes a view, which the device lacks");
    }
    Tensor out =
        empty_strided(result.sizes(), result.strides(), result.scalar_type(), {}, *device_, {});
    kernel_view(out).copy_(result);
    return out;
  }

  IValue returned(const c10::Argument& declared, const IValue& value) const {
    if (declared.alias_info() != nullptr && declared.alias_info()->isWrite()) {
      for (size_t i = 0; i < given_.size(); ++i) {
        const auto* info = schema_.arguments()[i].alias_info();
        if (info != nullptr && *info == *declared.alias_info()) return given_[i];
      }
    }
    if (value.isTensor()) return on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> out;
    for (const Tensor& t : value.toTensorVector()) out.push_back(on_device(t));
    return out;
  }

  const c10::FunctionSchema& schema_;
  const c10::OperatorHandle& op_;
  std::vector<IValue> given_;
  std::vector<View> views_;
  std::optional<c10::Device> device_;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  HostCall(op).run(*stack);
}

}  // namespace

Tensor kernel_view(const Tensor& t) {
  if (!t.defined() || !is_here(t)) return t;
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto options = at::device(at::kCPU).dtype(t.scalar_type());
  Tensor view = t.numel() == 0 ? at::empty_strided(t.sizes(), t.strides(), options)
                               : at::for_blob(kernel_address(t.const_data_ptr()), t.sizes())
                                     .strides(t.strides())
                                     .options(options)
                                     .resizeable_storage()
                                     .allocator(c10::GetAllocator(c10::kCPU))
                                     .make_tensor();
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return view;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
}

}  // namespace cleave::fake_device
