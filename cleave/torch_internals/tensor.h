#pragma once
#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace cleave::inline torch_internals {

using at::Tensor;

/// Base of a record that a tensor carries. It lasts as long as the tensor. Detached copies of the
/// tensor share it, so a record never changes: change_record() puts a changed copy in its place.
using TensorRecord = c10::BackendMeta;

/// The tensor's record; null if it has none of this type.
template <class Record>
const Record* record_on(const Tensor& t) {
  if (!t.defined()) return nullptr;
  return dynamic_cast<const Record*>(t.unsafeGetTensorImpl()->get_backend_meta());
}

/// Replaces the tensor's record with a copy that `change` has modified; a new one if it has none.
template <class Record, class Change>
void change_record(const Tensor& t, const Change& change) {
  const auto* known = record_on<Record>(t);
  auto next =
      known == nullptr ? c10::make_intrusive<Record>() : c10::make_intrusive<Record>(*known);
  change(*next);
  t.unsafeGetTensorImpl()->set_backend_meta(std::move(next));
}

/// How often the elements of a tensor were changed in place, with its views.
inline uint32_t version_of(const Tensor& t) {
  return t.unsafeGetTensorImpl()->version_counter().current_version();
}

// The memory of a tensor leaves and returns while the tensor stays: views of it, and graphs that
// saved it, read the new memory. libtorch does not count this as a change of the tensor.

/// Frees the memory of `t`. Nothing may read `t` or its views until move_storage() gives it other
/// memory.
void free_storage(const Tensor& t);

/// Gives the memory of `from`, which loses it, to `to`, whose memory is free. Both have as many
/// bytes.
void move_storage(const Tensor& from, const Tensor& to);

}  // namespace cleave::inline torch_internals
