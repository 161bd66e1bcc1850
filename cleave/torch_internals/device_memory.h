#pragma once
#include <cstdint>

#include <c10/core/CachingDeviceAllocator.h>

namespace cleave::inline torch_internals {

/// The memory of the calling thread's current device of a type other than the CPU, as libtorch's
/// allocator counts it.
class DeviceMemory {
 public:
  explicit DeviceMemory(c10::DeviceType type);

  /// Bytes that tensors can still take.
  [[nodiscard]] int64_t available() const;
  [[nodiscard]] int64_t peak() const;  ///< most bytes of this process's tensors since reset_peak()
  void reset_peak();

 private:
  c10::DeviceAllocator& allocator_;
  c10::DeviceIndex index_;
};

}  // namespace cleave::inline torch_internals
