#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/byte_progress.h"

namespace cleave::inline checkpoint {

/// A tensor that differs between two checkpoints.
struct TensorDifference {
  std::string name;
  bool in_a = true, in_b = true;     ///< false: only the other checkpoint has it
  std::string dtype_a{}, dtype_b{};  ///< "F32", ...
  std::vector<int64_t> shape_a{}, shape_b{};
  uint64_t num_different = 0;    ///< elements; 0 if shapes differ
  double max_absolute = 0;       ///< largest |a - b|; infinite if one is NaN
  double max_relative = 0;       ///< largest |a - b| / max(|a|, |b|)
  std::vector<int64_t> where{};  ///< indices of max_absolute
};

/// The result of diff().
struct DiffReport {
  int64_t num_tensors = 0;  ///< that both have
  std::vector<TensorDifference> differences;
  /// Tensors of optimizer state that are not compared, because the other side has none.
  int64_t num_only_in_a = 0, num_only_in_b = 0;
};

/// Compares two models, or two tensor files, tensor by tensor, whatever their formats and layouts:
/// a model folder, a checkpoint, a run folder, a model of the Hugging Face cache, a GGUF,
/// .safetensors, .bin or .pt file. Optimizer state is compared if both have some. Values are
/// compared as numbers; a NaN equals a NaN. Reads a few MiB at a time, after which it calls
/// `on_bytes` with the bytes of `a`. Throws Error(kIo) and Error(kFormat) as opening these does.
DiffReport diff(const std::string& a, const std::string& b, const OnBytes& on_bytes = {});

}  // namespace cleave::inline checkpoint

/// diff(), which the front end looks up in libcleave by this name.
extern "C" void cleave_diff(const std::string& a, const std::string& b, cleave::DiffReport& report);
