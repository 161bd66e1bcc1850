#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include <c10/core/CachingDeviceAllocator.h>

namespace cleave::fake_device {

inline constexpr int kMaxDevices = 8;

/// Whether `data` is memory of a fake device; false for nullptr.
[[nodiscard]] bool holds(const void* data);
/// The index of the device that holds `data`.
[[nodiscard]] int device_of(const void* data);
/// Where a kernel of the device reads and writes the device memory `data`. Any other address, and
/// nullptr, stays.
[[nodiscard]] void* kernel_address(const void* data);

/// Memory of fake devices. Tensors have addresses that the host can neither read nor write: access
/// ends the process with a message. New and freed memory is all ones (NaN).
c10::DeviceAllocator& allocator();
/// Host memory that counts as pinned.
c10::Allocator& pinned_allocator();
[[nodiscard]] bool is_pinned(const void* data);

}  // namespace cleave::fake_device
