#include "cleave/train/doctor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include "cleave/kernels/cpu/gemm.h"

void cleave_doctor(cleave::Facts& facts) {
  cleave::choose_gemm("auto", cleave::Axis());
  facts.emplace_back("libtorch", TORCH_VERSION);
  facts.emplace_back("libtorch kernels", at::get_cpu_capability());
  facts.emplace_back("matrix products", std::string(cleave::name(cleave::gemm())));
  facts.emplace_back("threads of kernels", cleave::str(at::get_num_threads()));
  facts.emplace_back("CUDA", at::hasCUDA() ? "available" : "not in this build");
}
