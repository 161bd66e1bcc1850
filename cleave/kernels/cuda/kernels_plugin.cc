// libcleave_cuda: registers the kernels for GPUs.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cleave/base/log.h"
#include "cleave/kernels/cuda/cuda_launch.h"
#include "cleave/kernels/device.h"
#include "cleave/kernels/recorded_work.h"

namespace cleave::inline kernels {
namespace {

/// Work as a CUDA graph.
class CudaGraphWork : public RecordedWork {
 public:
  explicit CudaGraphWork(const std::function<void()>& work) {
    c10::cuda::getCurrentCUDAStream().synchronize();
    // One stream for all recordings of a rank: cuBLAS keeps memory for each stream.
    static thread_local const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    work();
    stream.synchronize();
    // Other threads watch NCCL and the peers meanwhile.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      end_failed();
      throw;
    }
    graph_.capture_end();
  }
  /// The graph must not be destroyed while it runs.
  ~CudaGraphWork() override {
    C10_CUDA_CHECK_WARN(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream()));
  }
  CudaGraphWork(const CudaGraphWork&) = delete;
  CudaGraphWork& operator=(const CudaGraphWork&) = delete;
  void replay() override { graph_.replay(); }

 private:
  /// Ends the recording of work that failed, whose error is reported.
  void end_failed() {
    try {
      graph_.capture_end();
    } catch (const c10::Error& error) {
      log_warning("the recording of a CUDA graph failed: ", error.what_without_backtrace());
    }
  }

  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<RecordedWork> record(const std::function<void()>& work) {
  return std::make_unique<CudaGraphWork>(work);
}

/// Its constructor runs when libcleave_cuda is loaded.
struct Registration {
  Registration() {
    set_device_kernels(at::kCUDA, &cuda_kernels());
    set_recorder(at::kCUDA, &record);
  }
} registration;

}  // namespace

cudaStream_t current_cuda_stream() {
  return c10::cuda::getCurrentCUDAStream();
}

void check_cuda_launch(cudaError_t status) {
  C10_CUDA_CHECK(status);
}

}  // namespace cleave::inline kernels
