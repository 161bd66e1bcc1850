#include "cleave/torch_internals/tensor.h"

#include <utility>

#include <ATen/ATen.h>

namespace cleave::inline torch_internals {
namespace {

at::DataPtr no_memory(const c10::StorageImpl& storage) {
  return {nullptr, storage.device()};
}

}  // namespace

void free_storage(const Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(no_memory(*storage));
}

void move_storage(const Tensor& from, const Tensor& to) {
  c10::StorageImpl* source = from.storage().unsafeGetStorageImpl();
  to.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      source->set_data_ptr(no_memory(*source)));
}

}  // namespace cleave::inline torch_internals
