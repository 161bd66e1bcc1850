#pragma once
#include <string>

namespace cleave {

/// How ranks use their machine: the options of every command that runs a model. Needs no libtorch.
struct MachineOptions {
  std::string gemm = "auto";    ///< auto | mkl | onednn
  std::string plain_kernels{};  ///< kernels left to libtorch, in set_plain_kernels's format
  int threads_per_rank = 0;     ///< 0 = cores / ranks
  double timeout_s = 60;        ///< longest wait for another rank
  std::string device = "cpu";   ///< cpu | cuda
};

}  // namespace cleave
