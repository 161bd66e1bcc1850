#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

/// A tensor that two checkpoints do not have alike.
struct TensorDifference {
  std::string name;
  bool in_a = true, in_b = true;     ///< one is false: only the other has it
  std::string dtype_a{}, dtype_b{};  ///< "F32", ...
  std::vector<int64_t> shape_a{}, shape_b{};
  uint64_t num_different = 0;    ///< elements; 0 where shapes differ
  double max_absolute = 0;       ///< largest |a - b|; infinite where one is not a number
  double max_relative = 0;       ///< largest |a - b| / max(|a|, |b|)
  std::vector<int64_t> where{};  ///< of max_absolute
};

/// What diff found.
struct DiffReport {
  int64_t num_tensors = 0;  ///< that both have
  std::vector<TensorDifference> differences;
};

/// Compares two models, or two tensor files, tensor by tensor whatever their formats and layouts: a
/// model folder, a checkpoint (its optimizer's state too), a run's folder, a .safetensors, .bin or
/// .pt file. Values are compared as numbers: a NaN equals a NaN. Reads a few MiB at a time.
/// Throws Error(kIo) and Error(kFormat) as opening these does.
DiffReport diff(const std::string& a, const std::string& b);

}  // namespace cleave

/// diff, as the front end finds it in libcleave.
extern "C" void cleave_diff(const std::string& a, const std::string& b, cleave::DiffReport& report);
