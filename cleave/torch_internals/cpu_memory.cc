#include "cleave/torch_internals/cpu_memory.h"

#include <algorithm>
#include <atomic>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace cleave::inline torch_internals {

// libtorch's backward threads may report too, so the counts are atomic.
class CpuMemory::Reports : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    const int64_t now = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] int64_t live() const { return live_.load(std::memory_order_relaxed); }
  [[nodiscard]] int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(live(), std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

class CpuMemory::Guard {
 public:
  explicit Guard(const std::shared_ptr<Reports>& reports)
      : guard_(c10::DebugInfoKind::PROFILER_STATE, reports) {}

 private:
  c10::DebugInfoGuard guard_;
};

CpuMemory::CpuMemory()
    : reports_(std::make_shared<Reports>()), guard_(std::make_unique<Guard>(reports_)) {}

CpuMemory::~CpuMemory() = default;

int64_t CpuMemory::live() const {
  return reports_->live();
}

int64_t CpuMemory::peak() const {
  return reports_->peak();
}

void CpuMemory::reset_peak() {
  reports_->reset_peak();
}

}  // namespace cleave::inline torch_internals
