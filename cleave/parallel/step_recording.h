#pragma once
#include <array>
#include <filesystem>
#include <optional>

#include "cleave/mesh/mesh.h"
#include "cleave/parallel/held_memory.h"
#include "cleave/report/replay.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "cleave/torch_internals/op_clock.h"
#include "cleave/torch_internals/step_scope.h"

namespace cleave::inline parallel {

/// Records what every rank does in one step (of training, of decoding, or whatever lies between
/// the constructor and end()) and writes it as a page and a trace. Layers, backward, collectives,
/// the gradient sync and the optimizer are recorded by themselves; for other parts of a step there
/// is recorded() (runtime/step_recorder.h). The results of the step are the same bits.
///
/// Collective: all ranks of the mesh make the same calls, each on the thread that runs its step,
/// and on the CPU. Example:
///
///     StepRecording recording({mesh, mesh["tp"], model.parameters(), &optimizer});
///     ...  // the step
///     recording.write("out", {.title = "my model, step 3", .metrics = {.step = 3}});
class StepRecording {
 public:
  /// What is recorded.
  struct Subject {
    Mesh mesh;              ///< its dims name the ranks on the page
    Axis everyone;          ///< all ranks of the mesh in its order, as Mesh::flatten() makes it
    Parameters parameters;  ///< that this rank has
    const Optimizer* optimizer = nullptr;         ///< of these; it must outlive the recording
    DataSharding sharding = DataSharding::kNone;  ///< kFsdp: flat parameters are gathered
    const CpuMemory* counter = nullptr;           ///< that counts this thread's tensors already
    /// Bytes of the rank's tensors; by default those of parameters and optimizer, and as the rest
    /// what the step makes in addition.
    StepRecorder::Memory memory{};
  };

  /// Waits for all ranks, then records this rank's thread until end(). Throws Error(kUsage) if
  /// `everyone` does not have the ranks of the mesh, if parameters are not on the CPU, or while
  /// this thread records another step.
  explicit StepRecording(Subject subject);

  /// Ends the measurement of the time in collectives of pp, dp, tp and ep, which the page shows.
  void note_comm_end() {
    if (recorder_) recorder_->note_comm_end();
  }
  /// Ends the recording.
  void end();
  /// After end(): seconds of the rank's thread in the step, by TimeKind.
  [[nodiscard]] const std::array<double, kNumTimeKinds>& seconds() const { return seconds_; }
  /// Ends the recording, if end() did not, and writes replay.html and replay.json of all ranks into
  /// `folder`, which rank 0 makes. `replay` has what the step's caller knows: a title, metrics, a
  /// forecast; the rest is set here. Call it once; the second call is Error(kUsage). Throws
  /// Error(kIo).
  void write(const std::filesystem::path& folder, Replay replay);

 private:
  void add_weights();

  Subject subject_;
  std::optional<CpuMemory> own_counter_;
  double aligned_s_ = 0;
  std::optional<StepRecorder> recorder_;
  std::optional<BackwardRecorder> backward_;
  std::optional<OpClock> clock_;
  std::array<double, kNumTimeKinds> seconds_{};
  std::optional<RankRecording> recording_;  // from end() to write()
};

}  // namespace cleave::inline parallel
