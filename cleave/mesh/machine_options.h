#pragma once
#include <string>

namespace cleave {

/// How ranks use their machine: what every command that computes on a model can be told. Free of
/// libtorch.
struct MachineOptions {
  std::string gemm = "auto";    ///< auto | mkl | onednn
  std::string plain_kernels{};  ///< left to libtorch, as set_plain_kernels takes them
  int threads_per_rank = 0;     ///< 0 = cores / ranks
  double timeout_s = 60;        ///< longest wait for another rank
  std::string device = "cpu";   ///< cpu | cuda
};

}  // namespace cleave
