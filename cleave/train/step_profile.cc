#include "cleave/train/step_profile.h"

namespace cleave::inline train {

StepProfile::StepProfile(bool measures_time, c10::DeviceType device)
    : measures_time_(measures_time) {
  if (device == c10::kCPU) {
    memory_.emplace();
  } else {
    device_.emplace(device);
  }
}

void StepProfile::start() {
  if (memory_) memory_->reset_peak();
  if (device_) device_->reset_peak();
}

int64_t StepProfile::most_bytes() const {
  if (memory_) return memory_->peak();
  return device_ ? device_->peak() : most_bytes_;
}

bool StepProfile::measures_now() const {
  constexpr int kSteps = 8;
  return measures_time_ && !watches_memory() && num_clocked_ < kSteps;
}

void StepProfile::begin_step() {
  if (measures_now()) clock_.emplace();
}

void StepProfile::end_time() {
  if (!clock_) return;
  add_time(clock_->seconds());
  clock_.reset();
}

void StepProfile::add_time(const std::array<double, kNumTimeKinds>& seconds) {
  if (!measures_now()) return;
  for (size_t k = 0; k < seconds.size(); ++k) clocked_s_[k] += seconds[k];
  ++num_clocked_;
}

void StepProfile::end_memory() {
  if (!watches_memory() || ++num_watched_ < 2) return;
  most_bytes_ = most_bytes();
  memory_.reset();
  device_.reset();
}

NamesAndSeconds StepProfile::step_time() const {
  NamesAndSeconds parts;
  for (size_t k = 0; k < clocked_s_.size() && num_clocked_ > 0; ++k) {
    parts.emplace_back(name(static_cast<TimeKind>(k)), clocked_s_[k] / num_clocked_);
  }
  return parts;
}

}  // namespace cleave::inline train
