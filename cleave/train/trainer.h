#pragma once
#include <memory>
#include <span>

#include "cleave/mesh/mesh.h"
#include "cleave/parallel/step_recording.h"
#include "cleave/planner/machine.h"
#include "cleave/train/batch_loader.h"
#include "cleave/train/checkpointer.h"
#include "cleave/train/evaluator.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/resume.h"
#include "cleave/train/run_report.h"
#include "cleave/train/setup.h"
#include "cleave/train/step_profile.h"

namespace cleave::inline train {

/// One rank of a training run: the loop over its steps. Collective: all ranks of the world make the
/// same calls.
class Trainer {
 public:
  /// Builds this rank's part of the model and loads its weights, or initializes them. Throws Error.
  Trainer(const TrainSetup& setup, World& world);

  /// Trains to the last step, saves and writes the report. Returns 0. After a signal it saves, ends
  /// early and returns the signal. Throws Error.
  int run();

  /// Peak bytes of this rank's tensors in its first two steps.
  [[nodiscard]] int64_t most_bytes() const { return profile_.most_bytes(); }

 private:
  struct StepSums;

  void require_device_memory() const;
  void start();
  [[nodiscard]] bool continues() const;
  void begin_recording(int64_t step);
  void train_step(int64_t step);
  void end_step(StepMetrics m);
  void evaluate(StepMetrics& m);
  void make_up_evaluation();
  [[nodiscard]] StepSums sum_over_ranks(const PassResult& pass, std::span<const Batch> batches,
                                        double comm_s) const;
  void update(int64_t step, double loss, const GradientNorm& norm);
  void warn_of_no_labels(int64_t step);
  [[nodiscard]] double collective_seconds() const;
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  const TrainSetup& setup_;
  World& world_;
  StepProfile profile_;  // counts tensors from here on
  Mesh mesh_;
  Axis everyone_;
  RankModel rank_;
  RunState state_;
  BatchLoader batches_;
  StopRequest stop_;
  Evaluator evaluator_;
  Checkpointer checkpoints_;
  RunReport report_;
  Machine machine_;
  double load_s_ = 0;
  bool has_warned_ = false;  // of a batch without labels
  // Only during the step of --record-step. The last member, because its end reads the others.
  std::unique_ptr<StepRecording> recording_;
};

}  // namespace cleave::inline train
