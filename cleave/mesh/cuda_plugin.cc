// libcleave_cuda: the code that needs libtorch's CUDA libraries.
#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <exception>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cleave/mesh/c10d_group.h"
#include "cleave/mesh/cuda.h"

namespace cleave::inline mesh {
namespace {

/// Runs `action`; rethrows c10::Error as Error(code).
template <class Action>
auto checked(Code code, const std::string& what, const Action& action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    throw Error(code, str(what, ": ", error.what_without_backtrace()));
  }
}

class NcclGroup : public C10dGroup {
 public:
  using C10dGroup::C10dGroup;
  ~NcclGroup() override {
    // shutdown() waits for the peers; after a failure they may be gone.
    const bool unwinds = std::uncaught_exceptions() > 0;
    try {
      unwinds ? backend().abort() : backend().shutdown();
    } catch (const c10::Error&) {
      // The ranks' work is done or has failed already; another error would not help.
      (void)unwinds;
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int gpu, double timeout_s)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)), timeout_s_(timeout_s) {}

  [[nodiscard]] bool holds(const void* data) const override {
    if (data == nullptr) return false;
    cudaPointerAttributes attributes{};
    C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  }

  void copy(void* to, const void* from, size_t bytes) override {
    checked(Code::kPeer, "copy to or from the GPU", [&] {
      const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
      C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
      C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    });
  }

  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    return checked(Code::kPeer, str("axis ", group.name(), ": NCCL cannot connect"), [&] {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s_ * 1000));
      auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
          c10::make_intrusive<GroupStore>(group), group.rank(), group.size(), options);
      // Connect now, while all members are in this call, not during the first collective.
      backend->eagerConnectSingleDevice(device_);
      return std::make_unique<NcclGroup>(std::move(backend), device_, group.name());
    });
  }

 private:
  at::Device device_;
  double timeout_s_;
};

class CudaRuntime : public Cuda {
 public:
  [[nodiscard]] int num_gpus() const override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    CLEAVE_CHECK(status == cudaSuccess && count > 0, Code::kUsage,
                 "--device cuda: this host has no GPU that runs CUDA ", CUDART_VERSION / 1000, '.',
                 CUDART_VERSION % 1000 / 10, " (",
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status),
                 "); install a driver for it, or choose cpu");
    return count;
  }

  [[nodiscard]] std::string describe(int gpu) const override {
    return checked(Code::kUsage, str("GPU ", gpu), [&] {
      cudaDeviceProp properties{};
      C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, gpu));
      const auto mib = properties.totalGlobalMem >> 20U;
      return str(static_cast<const char*>(properties.name), ", ", mib / 1024, '.',
                 mib % 1024 * 10 / 1024, " GiB");
    });
  }

  [[nodiscard]] std::shared_ptr<Device> take(int gpu, double timeout_s) const override {
    return checked(Code::kUsage, str("--device cuda: GPU ", gpu), [&] {
      at::globalContext().lazyInitDevice(at::kCUDA);
      c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
      return std::make_shared<CudaDevice>(gpu, timeout_s);
    });
  }
};

}  // namespace
}  // namespace cleave::inline mesh

void cleave_cuda(std::unique_ptr<cleave::Cuda>* out) {
  *out = std::make_unique<cleave::CudaRuntime>();
}
