#pragma once
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "cleave/comm/api/device.h"

namespace cleave {

/// This host's GPUs, as libcleave_cuda knows them: everything that needs libtorch's CUDA libraries
/// is in there, so that runs on the processor do not load them.
class Cuda {
 public:
  virtual ~Cuda() = default;
  Cuda() = default;
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// GPUs that this process may use, at least 1. Throws Error(kUsage) where there is none, or no
  /// driver that fits.
  [[nodiscard]] virtual int num_gpus() const = 0;
  /// "NVIDIA H100 80GB HBM3, 79.1 GiB".
  [[nodiscard]] virtual std::string describe(int gpu) const = 0;
  /// Makes `gpu` what at::kCUDA means in the calling thread, a rank's. NCCL carries what the rank's
  /// groups move there; a collective that takes longer than `timeout_s` ends the process.
  [[nodiscard]] virtual std::shared_ptr<Device> take(int gpu, double timeout_s) const = 0;
};

/// Loads libcleave_cuda, once. Throws Error(kUsage) saying what is missing. Before anything is
/// computed: libtorch looks for CUDA when it computes first.
const Cuda& cuda();

/// Where the tensors of a --device flag live: "cpu", or "cuda" for the GPU that the rank has taken.
/// Throws Error(kUsage) for another flag, or when the process cannot compute there.
at::Device device_of(const std::string& flag);

}  // namespace cleave

/// What libcleave_cuda exports: its Cuda behind a name that dlsym finds.
extern "C" void cleave_cuda(std::unique_ptr<cleave::Cuda>* out);
