#pragma once
#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace cleave::inline kernels {

/// Work of a device that was recorded: replay() starts all of it with one call, on the same memory.
class RecordedWork {
 public:
  RecordedWork() = default;
  virtual ~RecordedWork() = default;
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;
  /// Starts the work on the calling thread's stream.
  virtual void replay() = 0;
};

/// Records what `work` starts on the calling thread's device. `work` is called twice and must start
/// the same both times: the first call runs, as a rehearsal in which libraries allocate memory, and
/// the second is recorded. `work` must not wait for the device. If tensors that it makes are kept,
/// they hold the results of the last replay.
using Recorder = std::unique_ptr<RecordedWork> (*)(const std::function<void()>& work);

/// Sets the recorder of a type of device; null: none. libcleave_cuda sets that of GPUs.
void set_recorder(c10::DeviceType type, Recorder recorder);
/// The recorder; null if the device has none, as the CPU.
Recorder recorder_of(c10::DeviceType type);

}  // namespace cleave::inline kernels
