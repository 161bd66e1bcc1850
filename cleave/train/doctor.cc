#include "cleave/train/doctor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include "cleave/mesh/cuda.h"
#include "cleave/planner/machine.h"
#include "cleave/runtime/kernel_switches.h"

namespace {

/// "2 GPUs: NVIDIA H100, 79.1 GiB; ...", or "none; " and the reason.
std::string cuda_text() {
  try {
    const cleave::Cuda& cuda = cleave::cuda();
    const int count = cuda.num_gpus();
    std::string text = cleave::str(count, count == 1 ? " GPU" : " GPUs");
    for (int gpu = 0; gpu < count; ++gpu) {
      text += (gpu == 0 ? ": " : "; ") + cuda.describe(gpu);
    }
    return text;
  } catch (const cleave::Error& error) {
    return cleave::str("none; ", error.what());
  }
}

}  // namespace

void cleave_doctor(cleave::Facts& facts) {
  cleave::choose_gemm("auto", cleave::Axis());
  facts.emplace_back("libtorch", TORCH_VERSION);
  facts.emplace_back("libtorch kernels", at::get_cpu_capability());
  facts.emplace_back("matrix products", std::string(cleave::name(cleave::gemm())));
  facts.emplace_back("kernel threads", cleave::str(at::get_num_threads()));
  facts.emplace_back("CUDA", cuda_text());
}
