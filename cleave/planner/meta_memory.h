#pragma once
#include <cstdint>

namespace cleave {

/// Bytes of the tensors on the meta device that this thread makes: they have shapes and no memory,
/// so a program that runs on them tells what it would take. What lies under a tensor and its views
/// counts once. One thread counts its own; tensors must die on the thread that made them.
class MetaMemory {
 public:
  /// Begins to count; tensors made before are not seen.
  MetaMemory();

  [[nodiscard]] int64_t live() const;  ///< bytes now
  [[nodiscard]] int64_t peak() const;  ///< most bytes since the count or reset_peak()
  void reset_peak();
};

}  // namespace cleave
