#include "cleave/train/step_profile.h"

namespace cleave::inline train {

bool StepProfile::measures_now() const {
  constexpr int kSteps = 8;
  return measures_time_ && !memory_ && num_clocked_ < kSteps;
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
  if (memory_ && ++num_watched_ == 2) {
    most_bytes_ = memory_->peak();
    memory_.reset();
  }
}

NamesAndSeconds StepProfile::step_time() const {
  NamesAndSeconds parts;
  for (size_t k = 0; k < clocked_s_.size() && num_clocked_ > 0; ++k) {
    parts.emplace_back(name(static_cast<TimeKind>(k)), clocked_s_[k] / num_clocked_);
  }
  return parts;
}

}  // namespace cleave::inline train
