#include "cleave/torch_internals/device_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace cleave::inline torch_internals {
namespace {

const auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

DeviceMemory::DeviceMemory(c10::DeviceType type)
    : allocator_(*c10::getDeviceAllocator(type)),
      index_(c10::impl::VirtualGuardImpl(type).getDevice().index()) {}

int64_t DeviceMemory::available() const {
  const auto free = static_cast<int64_t>(allocator_.getMemoryInfo(index_).first);
  const auto stats = allocator_.getDeviceStats(index_);
  return free + stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
}

int64_t DeviceMemory::peak() const {
  return allocator_.getDeviceStats(index_).allocated_bytes[kAll].peak;
}

void DeviceMemory::reset_peak() {
  allocator_.resetPeakStats(index_);
}

}  // namespace cleave::inline torch_internals
