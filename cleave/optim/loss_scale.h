#pragma once
#include <cstdint>

namespace cleave::inline optim {

/// Loss scaling, which keeps small gradients from underflowing in fp16: the loss is multiplied by a
/// factor before backward and gradients are divided by it after. The factor halves when gradients
/// overflow and doubles after 2000 steps without overflow. Source: torch.amp.GradScaler and its
/// defaults.
class LossScale {
 public:
  /// If it is off, the factor is always 1.
  explicit LossScale(bool is_on) : value_(is_on ? 65536 : 1), is_on_(is_on) {}

  [[nodiscard]] bool is_on() const { return is_on_; }
  [[nodiscard]] double value() const { return value_; }
  /// Steps without overflow since the last change.
  [[nodiscard]] int64_t num_good_steps() const { return num_good_steps_; }

  /// Updates the factor after a step; `is_finite`: whether its gradients were.
  void update(bool is_finite) {
    if (!is_on_) return;
    num_good_steps_ = is_finite ? num_good_steps_ + 1 : 0;
    if (!is_finite) value_ /= 2;
    if (num_good_steps_ < kGrowthSteps) return;
    value_ *= 2;
    num_good_steps_ = 0;
  }
  /// Restores the state from a checkpoint.
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

}  // namespace cleave::inline optim
