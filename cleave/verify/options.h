#pragma once
#include <cstdint>
#include <string>

#include "cleave/mesh/machine_options.h"

namespace cleave {

/// Everything `cleave verify` can be told. Free of libtorch.
struct VerifyOptions : MachineOptions {
  std::string model;   ///< preset, or folder of a model or of a run
  std::string plan{};  ///< JSON file; empty = the model's
  bool sequence_parallel = false;
  int tp = 0;  ///< 0 = 2, or what the launcher's world leaves
  int dp = 1;
  std::string layer{};  ///< only these Layers one by one: a pattern of a path; empty = all
  int64_t fuzz = 0;     ///< that many random configurations instead of the model's own
  std::string dtype{};  ///< fp32 | bf16 | fp16 | fp64; empty = the folder's, else fp32
  uint64_t seed = 0;
  bool json = false;
};

}  // namespace cleave

/// Found in libcleave by this name. Prints to stdout; returns the exit code: 0 when the split model
/// is the model on one rank, else 9. Throws Error.
extern "C" int cleave_verify(const cleave::VerifyOptions& options);
