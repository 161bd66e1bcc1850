#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cleave::fake_device {

/// What the host did with a device that a GPU would make it wait for.
struct Counts {
  int64_t reads = 0;     ///< device values that the host read, and waits for streams
  int64_t uploads = 0;   ///< copies of host tensors to the device that wait for the device
  int64_t messages = 0;  ///< copies of the job's transport

  /// How often the host waited for the device.
  [[nodiscard]] int64_t waits() const { return reads + uploads + messages; }
  Counts operator-(const Counts& before) const {
    return {reads - before.reads, uploads - before.uploads, messages - before.messages};
  }
};

enum class Wait { kRead, kUpload, kMessage };

/// The counts of a device since the start of the process.
[[nodiscard]] Counts counts_of(int device);
/// Counts. With FAKE_DEVICE_TRACE=1, prints where it happened.
void count(int device, Wait wait);

/// The device of the calling thread, 0 at first.
[[nodiscard]] int current_device();
void set_current_device(int device);

/// Makes the fake device libtorch's device of type PrivateUse1. Call it before any other operation
/// of a tensor.
void register_device();

/// The memory of a device tensor as a tensor of the CPU, for kernels. Undefined stays undefined.
[[nodiscard]] at::Tensor kernel_view(const at::Tensor& t);

}  // namespace cleave::fake_device
