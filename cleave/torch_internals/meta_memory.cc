#include "cleave/torch_internals/meta_memory.h"

#include <algorithm>

#include <c10/core/Allocator.h>

namespace cleave {
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

}  // namespace cleave
