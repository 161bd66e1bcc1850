#pragma once
#include <cstdint>
#include <memory>

namespace cleave::inline torch_internals {

/// Counts the bytes of the CPU tensors that this thread makes from now on, as libtorch's allocator
/// reports them. So ranks that are threads of one process can be measured one by one. It must be
/// destroyed on the thread that made it.
class CpuMemory {
 public:
  CpuMemory();
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  [[nodiscard]] int64_t live() const;  ///< bytes now; below 0 after frees of older tensors
  [[nodiscard]] int64_t peak() const;  ///< most bytes so far, or since reset_peak()
  void reset_peak();

 private:
  class Reports;
  class Guard;
  std::shared_ptr<Reports> reports_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace cleave::inline torch_internals
