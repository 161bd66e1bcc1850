#pragma once
#include <cuda_runtime_api.h>

#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

/// The kernels for GPUs (kernels.cu).
const DeviceKernels& cuda_kernels();

/// libtorch's current stream of the calling thread's GPU.
cudaStream_t current_cuda_stream();
/// Throws c10::Error, as libtorch's operations do, unless `status` is cudaSuccess.
void check_cuda_launch(cudaError_t status);

}  // namespace cleave::inline kernels
