// Instantiates the kernels for GPUs. No header of libtorch, so that nvcc needs seconds.
#include <cstring>
#include <cuda_runtime_api.h>
#include <type_traits>

#include "cleave/kernels/cuda/cuda_launch.h"
#include "cleave/kernels/cuda/kernel_set.h"

namespace cleave::inline kernels {
namespace {

class CudaBlock {
 public:
  __device__ __forceinline__ int64_t index() const { return blockIdx.x; }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  template <class T>
  __device__ __forceinline__ T exchange(T value, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFF, value, mask);
  }
  __device__ __forceinline__ void wait_for_earlier() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
  }
  __device__ __forceinline__ void* shared() const {
    extern __shared__ double2 memory[];
    return memory;
  }
};

/// The bytes of an argument: a kernel's arguments are copied, and jobs have no copies.
template <class T>
struct Bytes {
  static_assert(std::is_trivially_destructible_v<T>);
  explicit Bytes(const T& argument) { memcpy(at, &argument, sizeof(T)); }
  const __device__ __forceinline__ T& get() const { return *reinterpret_cast<const T*>(at); }
  alignas(T) unsigned char at[sizeof(T)];
};

/// All arguments of a kernel.
template <class... Arguments>
struct AllBytes {
  template <class Kernel, class... Done>
  __device__ __forceinline__ void call(const Kernel& kernel, const CudaBlock& block,
                                       const Done&... done) const {
    kernel(block, done...);
  }
};
template <class First, class... Others>
struct AllBytes<First, Others...> {
  explicit AllBytes(const First& first_argument, const Others&... other_arguments)
      : first(first_argument), others(other_arguments...) {}
  template <class Kernel, class... Done>
  __device__ __forceinline__ void call(const Kernel& kernel, const CudaBlock& block,
                                       const Done&... done) const {
    others.call(kernel, block, done..., first.get());
  }
  Bytes<First> first;
  AllBytes<Others...> others;
};

/// How many blocks of a kernel must fit into a multiprocessor together, which limits its registers:
/// its kLeastBlocks, or as nvcc chooses.
template <class Kernel>
constexpr int least_blocks() {
  if constexpr (requires { Kernel::kLeastBlocks; }) {
    return Kernel::kLeastBlocks;
  } else {
    return 0;
  }
}

/// Whether the kernel calls wait_for_earlier() itself.
template <class Kernel>
constexpr bool waits_itself() {
  return requires {
    Kernel::kWaitsItself;
  };
}

/// The arguments stay in constant memory: some are arrays that a variable indexes.
template <class Kernel, class Arguments>
__global__ void __launch_bounds__(kMostThreads, least_blocks<Kernel>())
    run(const __grid_constant__ Arguments arguments) {
  const CudaBlock block;
  if constexpr (!waits_itself<Kernel>()) block.wait_for_earlier();
  arguments.call(Kernel(), block);
}

/// Whether the current GPU can start a kernel while the one before it still runs, so that the time
/// of the start is hidden. See "programmatic dependent launch" in the CUDA programming guide.
bool starts_early() {
  static const bool starts = [] {
    int device = 0;
    int major = 0;
    check_cuda_launch(cudaGetDevice(&device));
    check_cuda_launch(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return starts;
}

struct CudaLaunch {
  template <class Kernel, class... Arguments>
  void operator()(const Kernel&, const Grid& grid, const Arguments&... arguments) const {
    if (grid.blocks == 0) return;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(grid.blocks);
    config.blockDim = static_cast<unsigned>(grid.threads);
    config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config.stream = current_cuda_stream();
    config.attrs = &attribute;
    config.numAttrs = starts_early() ? 1 : 0;
    using All = AllBytes<Arguments...>;
    check_cuda_launch(cudaLaunchKernelEx(&config, &run<Kernel, All>, All(arguments...)));
  }
};

}  // namespace

const DeviceKernels& cuda_kernels() {
  static const KernelSet<CudaLaunch> set;
  return set;
}

}  // namespace cleave::inline kernels
