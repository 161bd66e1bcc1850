// libcleave_cuda: the code that needs libtorch's CUDA libraries.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <exception>
#include <iterator>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cleave/base/log.h"
#include "cleave/mesh/c10d_group.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/staged_group.h"

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

/// Where a rank's groups of NCCL are.
struct NcclPlace {
  at::Device device;
  double timeout_s;  ///< of a collective
};

c10::intrusive_ptr<c10d::Backend> connect_nccl(const c10::intrusive_ptr<GroupStore>& store,
                                               int rank, int size, const NcclPlace& place) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(place.timeout_s * 1000));
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // Connect now, while all ranks are in this call, not during the first collective.
  backend->eagerConnectSingleDevice(place.device);
  store->close();
  return backend;
}

class NcclGroup : public C10dGroup {
 public:
  NcclGroup(Group& group, const NcclPlace& place)
      : C10dGroup(
            connect_nccl(c10::make_intrusive<GroupStore>(group), group.rank(), group.size(), place),
            place.device, group.name()),
        place_(place) {}
  ~NcclGroup() override {
    // shutdown() waits for the peers, which may be gone after a failure. Only the rank's own thread
    // can tell whether an exception is in flight.
    const bool is_orderly = !is_aborted_ && std::this_thread::get_id() == thread_ &&
                            std::uncaught_exceptions() == num_exceptions_;
    if (is_orderly) {
      for_each_backend([](auto& backend) { without_errors([&] { backend.shutdown(); }); });
    } else {
      NcclGroup::abort();
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// A CUDA graph may contain NCCL's collectives.
  [[nodiscard]] bool can_record() const override { return true; }
  void abort() override {
    if (is_aborted_.exchange(true)) return;
    for_each_backend([](auto& backend) { without_errors([&] { backend.abort(); }); });
  }
  [[nodiscard]] std::string failure() override {
    auto error = c10d::ErrorType::SUCCESS;
    for_each_backend([&](auto& backend) {
      if (error == c10d::ErrorType::SUCCESS) error = backend.getError();
    });
    if (is_aborted_ || error == c10d::ErrorType::SUCCESS) return "";
    const bool is_late = error == c10d::ErrorType::TIMEOUT;
    return str("axis ", name(), ": NCCL ", is_late ? "takes longer than --timeout" : "failed",
               "; NCCL_DEBUG=INFO shows more");
  }

 protected:
  BackendPtr connect_pair(Group& group, int peer, int rank) override {
    return checked(Code::kPeer, str("axis ", name(), ": NCCL cannot connect for messages"), [&] {
      return connect_nccl(c10::make_intrusive<GroupStore>(group, peer, rank), rank, 2, place_);
    });
  }

 private:
  /// The ranks' work is done or has failed already; another error would not help.
  template <class Action>
  static void without_errors(const Action& action) {
    try {
      action();
    } catch (const c10::Error& error) {
      log_warning("NCCL: ", error.what_without_backtrace());
    }
  }

  NcclPlace place_;
  std::atomic<bool> is_aborted_ = false;
  std::thread::id thread_ = std::this_thread::get_id();  // the rank's
  int num_exceptions_ = std::uncaught_exceptions();
};

/// Sets an environment variable unless the user has set it.
void set_default(const char* name, const char* value) {
  (void)setenv(name, value, /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
}

/// Settings of c10d and NCCL, which read them when a group connects.
void set_nccl_defaults() {
  // Failed collectives must not end the process: DeviceMonitor reports them and the ranks stop.
  set_default("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  // After a timeout c10d would wait up to a minute for a dump of all ranks; there is a flight log.
  set_default("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  // A rank's collectives of different groups start on the GPU in the order of its calls, which is
  // the same on all ranks; otherwise two GPUs could wait for each other.
  set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  if (gpu_sharing() != GpuSharing::kNccl) return;
  // NCCL refuses two ranks of one host on a GPU, so each rank is a host of its own to NCCL, and
  // sockets connect them.
  set_default("NCCL_HOSTID", str("cleave-", getpid()).c_str());
  for (const char* const other : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"}) {
    set_default(other, "1");
  }
  set_default("NCCL_SOCKET_IFNAME", "lo");
}

/// Every run gives the same bits, or libtorch refuses an operation that has no such form. To be
/// called before CUDA starts.
void make_deterministic() {
  set_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8");  // cuBLAS reads it when it starts
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Otherwise libtorch writes every tensor that it allocates once more.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

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

  [[nodiscard]] std::shared_ptr<std::byte[]> host_memory(size_t bytes) override {
    return checked(Code::kMemory, "page-locked host memory", [&] {
      void* data = nullptr;
      C10_CUDA_CHECK(cudaMallocHost(&data, bytes));
      return std::shared_ptr<std::byte[]>(static_cast<std::byte*>(data),
                                          [](std::byte* memory) { cudaFreeHost(memory); });
    });
  }

  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    if (gpu_sharing() == GpuSharing::kHost) return staged_group(*this, group);
    return checked(Code::kPeer, str("axis ", group.name(), ": NCCL cannot connect"), [&] {
      return std::make_unique<NcclGroup>(group,
                                         NcclPlace{.device = device_, .timeout_s = timeout_s_});
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

  [[nodiscard]] std::string uuid(int gpu) const override {
    return checked(Code::kUsage, str("GPU ", gpu), [&] {
      cudaDeviceProp properties{};
      C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, gpu));
      return std::string(std::begin(properties.uuid.bytes), std::end(properties.uuid.bytes));
    });
  }

  [[nodiscard]] std::shared_ptr<Device> take(int gpu, double timeout_s) const override {
    return checked(Code::kUsage, str("--device cuda: GPU ", gpu), [&] {
      set_nccl_defaults();
      if (is_deterministic()) make_deterministic();
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
