#pragma once
#include <cstdint>

namespace cleave {

/// The factor that keeps small gradients out of fp16's zero: the loss is multiplied by it before
/// backward and gradients are divided by it after. It halves when they overflow and doubles after
/// 2000 steps that did not. Source: torch.amp.GradScaler and its defaults.
class LossScale {
 public:
  /// Off it is 1 and stays so.
  explicit LossScale(bool is_on) : value_(is_on ? 65536 : 1), is_on_(is_on) {}

  [[nodiscard]] bool is_on() const { return is_on_; }
  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] int64_t num_good_steps() const { return num_good_steps_; }  ///< since it changed

  /// After a step whose gradients were finite, or were not.
  void note(bool is_finite) {
    if (!is_on_) return;
    num_good_steps_ = is_finite ? num_good_steps_ + 1 : 0;
    if (!is_finite) value_ /= 2;
    if (num_good_steps_ < kGrowthSteps) return;
    value_ *= 2;
    num_good_steps_ = 0;
  }
  /// As a checkpoint has it.
  void restore(double value, int64_t num_good_steps) {
    if (!is_on_) return;
    value_ = value;
    num_good_steps_ = num_good_steps;
  }

 private:
  static constexpr int64_t kGrowthSteps = 2000;
  double value_;
  bool is_on_;
  int64_t num_good_steps_ = 0;
};

}  // namespace cleave
