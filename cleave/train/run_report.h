#pragma once
#include <memory>
#include <string>

#include "cleave/base/progress.h"
#include "cleave/mesh/mesh.h"
#include "cleave/planner/machine.h"
#include "cleave/report/event_file.h"
#include "cleave/report/metrics.h"
#include "cleave/report/record.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/resume.h"
#include "cleave/train/step_profile.h"

namespace cleave::inline train {

/// What a run shows and writes about itself: its first lines and its progress on stdout, its
/// metrics.jsonl, its event files, and its report. All by rank 0; on other ranks the calls do
/// nothing, but finish() is collective.
class RunReport {
 public:
  /// The run begins now. All arguments must outlive the object.
  RunReport(const TrainSetup& setup, World& world, const Mesh& mesh, const Axis& everyone);

  /// Writes the record of the run and prints the lines that describe it.
  void start(const RunState& state, Model& model, const Machine& machine);
  /// Shows the progress of the steps from now on, if there are any left.
  void start_progress(const RunState& state);
  void add(const StepMetrics& metrics);
  /// The metrics of a step before this start. Only `step` is set on other ranks, and if the line of
  /// the step is missing.
  [[nodiscard]] StepMetrics metrics_of(int64_t step) const;
  /// Replaces the last line of metrics.jsonl by one of the same step.
  void replace_last(const StepMetrics& metrics);
  /// Writes the report of the run, which ended like `outcome` says. `other_time`: the seconds
  /// outside of steps. Collective.
  void finish(const std::string& outcome, const RunState& state, RankModel& rank,
              const StepProfile& profile, const NamesAndSeconds& other_time);

  /// The title of the report's page; rank 0 only.
  [[nodiscard]] const std::string& title() const { return record_.title; }
  /// Seconds since the run began.
  [[nodiscard]] double seconds() const;

 private:
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  const TrainSetup& setup_;
  World& world_;
  const Mesh& mesh_;
  const Axis& everyone_;
  double start_s_;
  RunRecord record_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<EventFile> events_;  // of --log tensorboard
  std::unique_ptr<Progress> progress_;
};

}  // namespace cleave::inline train
