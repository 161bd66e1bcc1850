#pragma once
#include <atomic>

#include "cleave/kernels/cuda/kernel_set.h"
#include "cleave/kernels/device.h"
#include "tests/support/fiber_block.h"

namespace cleave::test {

/// While it lives, tensors on the CPU get the CUDA kernels, run by fibers: every layer takes the
/// way that it takes on a GPU, up to the launch.
class FiberKernels {
 public:
  explicit FiberKernels(bool is_reversed = false)
      : kernels_({.is_reversed = is_reversed, .launches = &launches_}) {
    set_device_kernels(at::kCPU, &kernels_);
  }
  ~FiberKernels() { set_device_kernels(at::kCPU, nullptr); }
  FiberKernels(const FiberKernels&) = delete;
  FiberKernels& operator=(const FiberKernels&) = delete;

  [[nodiscard]] int launches() const { return launches_; }

 private:
  std::atomic<int> launches_{0};
  KernelSet<FiberLaunch> kernels_;
};

}  // namespace cleave::test
