// What torch.cuda.max_memory_allocated says of a GPU, for a rank on the CPU.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

namespace imdb_bert {

// Bytes of the tensors that this thread has at once, from its start to its end: the most. Ranks may
// be threads of one process, so the process's own memory says nothing of one of them.
class PeakMemory {
 public:
  [[nodiscard]] int64_t bytes() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*memory*/, int64_t size, size_t /*allocated*/,
                           size_t /*reserved*/, c10::Device /*device*/) override {
      now += size;
      peak = std::max(peak, now);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  // libtorch's allocator reports to the profiler of the thread; this stands in its place.
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace imdb_bert
