#include "cleave/kernels/recorded_work.h"

#include <array>
#include <atomic>

namespace cleave::inline kernels {
namespace {

std::array<std::atomic<Recorder>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> recorders{};

}  // namespace

void set_recorder(c10::DeviceType type, Recorder recorder) {
  recorders[static_cast<size_t>(type)] = recorder;
}

Recorder recorder_of(c10::DeviceType type) {
  return recorders[static_cast<size_t>(type)].load(std::memory_order_acquire);
}

}  // namespace cleave::inline kernels
