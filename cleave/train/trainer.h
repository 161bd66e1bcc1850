#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/progress.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/mesh/mesh.h"
#include "cleave/optim/loss_scale.h"
#include "cleave/planner/machine.h"
#include "cleave/report/metrics.h"
#include "cleave/report/record.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "cleave/torch_internals/op_clock.h"
#include "cleave/train/early_stop.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/reference.h"
#include "cleave/train/setup.h"
#include "cleave/train/step.h"

namespace cleave::inline train {

/// One rank of a training run. Collective: all ranks of the world make the same calls.
class Trainer {
 public:
  /// Builds this rank's part of the model and loads its weights, or initializes them. Throws Error.
  Trainer(const TrainSetup& setup, World& world);

  /// Trains to the last step, saves and writes the report. Returns 0. After a signal it saves, ends
  /// early and returns the signal. Throws Error.
  int run();

  /// Peak bytes of this rank's tensors in its first two steps.
  [[nodiscard]] int64_t most_bytes() const { return memory_ ? memory_->peak() : most_bytes_; }

 private:
  void load();
  void set_aside_newer();
  void check_changes(const Json& state) const;
  void start_log();
  void start_progress();
  void check_same_batch(std::span<const Batch> batches) const;
  [[nodiscard]] SampleOrder order_of(const Dataset& data) const;
  void load_reference();
  void prepare_reference();
  [[nodiscard]] Tensor reference_of(const Dataset& data, const std::string& unit);
  [[nodiscard]] Range own_range(int64_t num_samples) const;
  [[nodiscard]] std::vector<Batch> micro_batches(const Dataset& data, int64_t step,
                                                 int64_t num_samples) const;
  void train_step(int64_t step);
  void report_step(const StepMetrics& m);
  [[nodiscard]] bool watches_time() const;
  void note_time(const OpClock& clock);
  [[nodiscard]] NamesAndSeconds step_time() const;
  void update(int64_t step, double loss, const GradientNorm& norm);
  void check_finite(int64_t step, double loss, const GradientNorm& norm) const;
  void check_any_update();
  void swap_ema();
  [[nodiscard]] EvalSum evaluate();
  [[nodiscard]] EvalSum evaluate_weights();
  void note(const EvalSum& sum, StepMetrics& metrics) const;
  void note_for_early_stop(std::optional<double> loss);
  bool is_asked_to_stop(const char* site);
  [[nodiscard]] int64_t saves_ahead() const;
  [[nodiscard]] Checkpoint checkpoint();
  void save(bool async);
  void note_resumable();
  [[nodiscard]] std::string state_json() const;
  void finish(const std::string& outcome);
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  const TrainSetup& setup_;
  World& world_;
  std::optional<CpuMemory> memory_{std::in_place};  // of this rank thread, for two steps
  int num_watched_ = 0;
  int64_t most_bytes_ = 0;                         // peak bytes of tensors in these steps
  int num_clocked_ = 0;                            // measured steps of rank 0 after those
  std::array<double, kNumTimeKinds> clocked_s_{};  // sums over these steps
  Mesh mesh_;
  Axis everyone_;
  RankModel rank_;
  LossScale loss_scale_;
  EarlyStop early_stop_;
  RunFolder folder_;
  std::vector<CarriedTensor> carried_;
  std::optional<ReferenceLogProbs> reference_;  // of preferences, once it is known
  std::string model_name_;                      // --model of the first start of the run
  int64_t done_ = 0;                            // steps finished
  int64_t saved_ = -1;                          // steps in the newest checkpoint
  int64_t tokens_ = 0;                          // trained on since step 1
  bool is_resumable_ = false;                   // note_resumable() was called
  int stop_signal_ = 0;
  Machine machine_;
  double start_s_ = 0;
  double load_s_ = 0, save_s_ = 0, eval_s_ = 0;
  RunRecord record_;                        // rank 0's
  std::unique_ptr<MetricsWriter> metrics_;  // rank 0's
  std::unique_ptr<Progress> progress_;      // rank 0's
};

}  // namespace cleave::inline train
