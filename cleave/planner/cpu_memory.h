#pragma once
#include <cstdint>
#include <memory>

namespace cleave {

/// Bytes of the CPU tensors that this thread makes from now on, as libtorch's allocator reports
/// them: what a rank thread takes beside those of its process. The thread that made it destroys it.
class CpuMemory {
 public:
  CpuMemory();
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  [[nodiscard]] int64_t live() const;  ///< bytes now; frees of tensors made before count below 0
  [[nodiscard]] int64_t peak() const;  ///< most bytes so far, or since reset_peak()
  void reset_peak();

 private:
  class Reports;
  class Guard;
  std::shared_ptr<Reports> reports_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace cleave
