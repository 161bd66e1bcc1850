#pragma once
#include <cstdint>

#include "cleave/report/metrics.h"
#include "cleave/train/batch_loader.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/resume.h"
#include "cleave/train/stop_request.h"

namespace cleave::inline train {

/// Evaluates a run on --eval-data, and decides when it stops early. Collective: all ranks make the
/// same calls.
class Evaluator {
 public:
  /// All arguments must outlive the object.
  Evaluator(const TrainSetup& setup, const Axis& everyone, const BatchLoader& batches,
            RankModel& rank, StopRequest& stop)
      : setup_(setup), everyone_(everyone), batches_(batches), rank_(rank), stop_(stop) {}

  /// Whether the run is evaluated after `step` steps.
  [[nodiscard]] bool is_due(int64_t step) const;
  /// Evaluates the weights, or their averages with --ema. Sets loss and accuracy in `metrics`, and
  /// notes the loss for --early-stop. A signal interrupts it: the loss is then NaN.
  void run(StepMetrics& metrics, EarlyStop& early_stop);

  /// Seconds in run() so far.
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  void swap_ema();
  [[nodiscard]] EvalSum evaluate_weights();

  const TrainSetup& setup_;
  const Axis& everyone_;
  const BatchLoader& batches_;
  RankModel& rank_;
  StopRequest& stop_;
  double seconds_ = 0;
};

}  // namespace cleave::inline train
