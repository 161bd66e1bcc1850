#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "cleave/report/record.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "cleave/torch_internals/device_memory.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave::inline train {

/// Measures a few steps of this rank thread: the memory of its tensors in the first two, then, if
/// wanted, the time of operations in the next eight.
class StepProfile {
 public:
  /// Counts the tensors that this thread makes from now on; with a device other than the CPU those
  /// on the thread's device of that type.
  StepProfile(bool measures_time, c10::DeviceType device);

  /// Forgets the peak of what came before the first step.
  void start();
  void begin_step();
  /// Ends the measurement of time; end_memory() follows it in each step.
  void end_time();
  /// The time of a step that a recording has measured instead.
  void add_time(const std::array<double, kNumTimeKinds>& seconds);
  void end_memory();

  /// Peak bytes of tensors in the first two steps.
  [[nodiscard]] int64_t most_bytes() const;
  /// What counts the tensors of this thread; null after the first two steps, and on a device.
  [[nodiscard]] const CpuMemory* memory() const { return memory_ ? &*memory_ : nullptr; }
  /// Seconds of a step by kind, mean over the measured ones; empty if there are none.
  [[nodiscard]] NamesAndSeconds step_time() const;

 private:
  [[nodiscard]] bool watches_memory() const { return memory_ || device_; }
  [[nodiscard]] bool measures_now() const;

  bool measures_time_;
  // One of them, for two steps.
  std::optional<CpuMemory> memory_;
  std::optional<DeviceMemory> device_;
  int num_watched_ = 0;  // of these steps, so far
  int64_t most_bytes_ = 0;
  std::optional<OpClock> clock_;  // during a step whose time is measured
  int num_clocked_ = 0;
  std::array<double, kNumTimeKinds> clocked_s_{};  // sums over these steps
};

}  // namespace cleave::inline train
