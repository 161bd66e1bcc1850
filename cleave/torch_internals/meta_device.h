#pragma once
#include <cstdint>

namespace cleave::inline torch_internals {

/// Counts the bytes that this thread's tensors on the meta device would take. They have shapes and
/// no memory, so a program can run on them to measure what it needs. Storage that views share
/// counts once. Tensors must be destroyed on the thread that made them.
class MetaMemory {
 public:
  /// Starts to count; tensors made before do not count.
  MetaMemory();

  [[nodiscard]] int64_t live() const;  ///< bytes now
  [[nodiscard]] int64_t peak() const;  ///< most bytes since the start or reset_peak()
  void reset_peak();
};

/// Registers meta-device kernels of operators for which libtorch has one only in Python, so that a
/// step can run there (planner/forecast.h). Only the first call in a process has an effect.
void provide_meta_kernels();

}  // namespace cleave::inline torch_internals
