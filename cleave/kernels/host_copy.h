#pragma once
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cleave::inline kernels {

/// A copy of a tensor in host memory. A device makes it behind its other work, while the host
/// continues.
class HostCopy {
 public:
  /// Starts the copy.
  explicit HostCopy(const at::Tensor& t);
  /// Waits until the copy is there, and returns it.
  const at::Tensor& wait();

 private:
  at::Tensor copy_;
  std::optional<c10::Event> end_;  // none for a tensor of the CPU
};

}  // namespace cleave::inline kernels
