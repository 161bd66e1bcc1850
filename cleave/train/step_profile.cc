#include "cleave/train/step_profile.h"

namespace cleave::inline train {

void StepProfile::begin_step() {
  constexpr int kSteps = 8;
  if (measures_time_ && !memory_ && num_clocked_ < kSteps) clock_.emplace();
}

void StepProfile::end_time() {
  if (clock_) {
    const auto seconds = clock_->seconds();
    for (size_t k = 0; k < seconds.size(); ++k) clocked_s_[k] += seconds[k];
    ++num_clocked_;
    clock_.reset();
  }
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
