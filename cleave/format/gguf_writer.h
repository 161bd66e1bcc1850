#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/format/gguf.h"

namespace cleave::inline format {

/// A GGUF file (version 3) to be written: its header and the place of each tensor, computed before
/// a byte is written. The tensors' bytes are then written at GgufTensor::begin, and zeros between
/// them.
class GgufPlan {
 public:
  /// `tensors` have name, shape and type; they are written in this order. Throws Error(kUsage) for
  /// a row that is not a multiple of its type's block, Error(kFormat) for sizes beyond 64 bits.
  GgufPlan(const GgufMetadata& metadata, std::vector<GgufTensor> tensors);

  /// Everything before the first tensor.
  [[nodiscard]] const std::string& head() const { return head_; }
  /// With their places.
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::string head_;
  std::vector<GgufTensor> tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace cleave::inline format
