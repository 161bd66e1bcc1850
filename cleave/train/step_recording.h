#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cleave/mesh/mesh.h"
#include "cleave/planner/machine.h"
#include "cleave/report/metrics.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "cleave/torch_internals/step_scope.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// Records one training step of all ranks and writes it as a page and a trace. Collective: all
/// ranks of the world make the same calls.
class StepRecording {
 public:
  /// What is recorded; it must outlive the recording.
  struct Subject {
    RankModel& rank;
    const Mesh& mesh;
    const Axis& everyone;
    const CpuMemory* memory;  ///< counts this thread's tensors; null: the recording counts them
    DataSharding sharding;
  };

  /// Waits for all ranks, then records this rank's thread until end().
  explicit StepRecording(const Subject& subject);

  /// metrics.jsonl's comm_ms counts collectives until now.
  void note_comm_end() { recorder_->note_comm_end(); }
  /// Ends the recording.
  void end();
  /// Rank 0 writes replay.html and replay.json of all ranks into the run folder `out`. Throws
  /// Error(kIo).
  void write(const TrainSetup& setup, const Machine& machine, const StepMetrics& metrics,
             const std::string& title);

 private:
  void add_weights();

  Subject subject_;
  std::optional<CpuMemory> own_memory_;
  double aligned_s_ = 0;
  std::optional<StepRecorder> recorder_;
  std::optional<BackwardRecorder> backward_;
  RankRecording recording_;
};

}  // namespace cleave::inline train
