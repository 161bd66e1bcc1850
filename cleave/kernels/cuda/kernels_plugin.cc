// libcleave_cuda: registers the kernels for GPUs.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "cleave/kernels/cuda/cuda_launch.h"
#include "cleave/kernels/device.h"

namespace cleave::inline kernels {
namespace {

/// Its constructor runs when libcleave_cuda is loaded.
struct Registration {
  Registration() { set_device_kernels(at::kCUDA, &cuda_kernels()); }
} registration;

}  // namespace

cudaStream_t current_cuda_stream() {
  return c10::cuda::getCurrentCUDAStream();
}

void check_cuda_launch(cudaError_t status) {
  C10_CUDA_CHECK(status);
}

}  // namespace cleave::inline kernels
