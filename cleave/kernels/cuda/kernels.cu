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

/// The arguments stay in constant memory: some are arrays that a variable indexes.
template <class Kernel, class... Arguments>
__global__ void __launch_bounds__(kMostThreads, least_blocks<Kernel>())
    run(const __grid_constant__ Bytes<Arguments>... arguments) {
  Kernel()(CudaBlock(), arguments.get()...);
}

struct CudaLaunch {
  template <class Kernel, class... Arguments>
  void operator()(const Kernel&, const Grid& grid, const Arguments&... arguments) const {
    if (grid.blocks == 0) return;
    run<Kernel, Arguments...>
        <<<static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
           static_cast<size_t>(grid.shared_bytes), current_cuda_stream()>>>(
            Bytes<Arguments>(arguments)...);
    check_cuda_launch(cudaGetLastError());
  }
};

}  // namespace

const DeviceKernels& cuda_kernels() {
  static const KernelSet<CudaLaunch> set;
  return set;
}

}  // namespace cleave::inline kernels
