#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "cleave/comm/api/device.h"
#include "cleave/comm/api/world.h"

namespace cleave::inline mesh {

/// This host's GPUs. Implemented in libcleave_cuda, the only library that links libtorch's CUDA
/// libraries, so runs on the CPU do not load them.
class Cuda {
 public:
  virtual ~Cuda() = default;
  Cuda() = default;
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// libtorch's type of the devices: at::kCUDA, or that of another accelerator's library.
  [[nodiscard]] virtual at::DeviceType type() const { return at::kCUDA; }
  /// Number of GPUs that this process may use, at least 1. Throws Error(kUsage) without a GPU or a
  /// suitable driver.
  [[nodiscard]] virtual int num_gpus() const = 0;
  /// "NVIDIA H100 80GB HBM3, 79.1 GiB".
  [[nodiscard]] virtual std::string describe(int gpu) const = 0;
  /// Identifies the GPU among those of all hosts; equally long for all of them. The default, its
  /// number, is for devices of one host.
  [[nodiscard]] virtual std::string uuid(int gpu) const { return {static_cast<char>(gpu)}; }
  /// Makes `gpu` the current device of the calling rank thread. The rank's groups
  /// then use NCCL for GPU memory, or what gpu_sharing() says. A collective of NCCL that takes
  /// longer than `timeout_s` fails the job.
  [[nodiscard]] virtual std::shared_ptr<Device> take(int gpu, double timeout_s) const = 0;
};

/// Loads libcleave_cuda once. Call it before any tensor operation, because libtorch looks for CUDA
/// at its first one. Throws Error(kUsage) naming what is missing.
const Cuda& cuda();

/// The device of a --device flag: "cpu", or "cuda" for the GPU that the rank has taken. Throws
/// Error(kUsage) for another flag, or when the process cannot use that device.
at::Device device_of(const std::string& flag);

/// How CLEAVE_SHARE_GPU lets several ranks of a host use one GPU, to test layouts.
enum class GpuSharing : uint8_t {
  kNone,  ///< not set: each rank needs its own GPU
  kHost,  ///< "1": collectives of GPU memory go through host memory
  kNccl,  ///< "nccl": through NCCL, to which each rank appears to be a host of its own
};

/// Throws Error(kUsage) for another value of CLEAVE_SHARE_GPU.
GpuSharing gpu_sharing();
inline bool shares_gpus() {
  return gpu_sharing() != GpuSharing::kNone;
}

/// Whether CLEAVE_DETERMINISTIC=1 asks for the same bits in every run on GPUs, at the cost of
/// speed.
bool is_deterministic();

/// Throws Error(kShape) if two ranks use the same GPU. Collective; `uuid` is that of this rank's.
void check_own_gpus(World& world, const std::string& uuid);

}  // namespace cleave::inline mesh

/// Factory that libcleave_cuda exports; found by dlsym.
extern "C" void cleave_cuda(std::unique_ptr<cleave::Cuda>* out);
