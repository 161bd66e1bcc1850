#pragma once
#include <cstdint>
#include <string>

#include "cleave/mesh/machine_options.h"

namespace cleave {

/// Options of `cleave verify`. Free of libtorch.
struct VerifyOptions : MachineOptions {
  std::string model;   ///< preset, or folder of a model or of a run
  std::string plan{};  ///< JSON file; empty = the model's
  bool sequence_parallel = false;
  int tp = 0;  ///< 0 = 2, or ranks of the launcher / dp
  int dp = 1;
  std::string layer{};  ///< pattern of paths of the layers to run; empty = all
  int64_t fuzz = 0;     ///< number of random configurations to verify instead; 0 = off
  std::string dtype{};  ///< fp32 | bf16 | fp16 | fp64; empty = that of the folder, else fp32
  uint64_t seed = 0;
  bool json = false;
};

}  // namespace cleave

/// The front end finds this symbol in libcleave by name. Prints to stdout and returns the exit
/// code: 0 if the sharded model matches the model on one rank, else 9. Throws Error.
extern "C" int cleave_verify(const cleave::VerifyOptions& options);
