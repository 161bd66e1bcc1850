#pragma once
#include <cstdint>
#include <limits>

namespace cleave::inline train {

/// Ends a run after `patience` evaluations in a row without a new lowest loss. Source:
/// transformers' EarlyStoppingCallback, threshold 0.
class EarlyStop {
 public:
  /// What a checkpoint keeps.
  struct State {
    int64_t best_step = -1;  ///< -1: no evaluation with a finite loss yet
    double best_loss = std::numeric_limits<double>::infinity();
    int64_t num_worse = 0;  ///< evaluations since the best
  };

  /// 0 is off.
  explicit EarlyStop(int64_t patience) : patience_(patience) {}

  [[nodiscard]] bool is_on() const { return patience_ > 0; }
  [[nodiscard]] bool is_over() const { return is_on() && state_.num_worse >= patience_; }
  [[nodiscard]] const State& state() const { return state_; }
  /// Continues from the state of a checkpoint.
  void restore(const State& state) { state_ = state; }

  /// Notes an evaluation after this many steps. NaN is no improvement.
  void note(int64_t step, double loss) {
    if (loss < state_.best_loss) {
      state_ = {.best_step = step, .best_loss = loss, .num_worse = 0};
    } else {
      ++state_.num_worse;
    }
  }

 private:
  int64_t patience_;
  State state_;
};

}  // namespace cleave::inline train
