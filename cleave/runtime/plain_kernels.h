#pragma once
#include <array>

#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline runtime {

/// Turns all kernels off for the process until it is destroyed, so that libtorch's operations are
/// used; then the kernels that were on are on again. Not while ranks run as threads.
class PlainKernels {
 public:
  PlainKernels();
  ~PlainKernels();
  PlainKernels(const PlainKernels&) = delete;
  PlainKernels& operator=(const PlainKernels&) = delete;

 private:
  std::array<bool, kNumKernels> was_off_{};
};

}  // namespace cleave::inline runtime
