#pragma once
#include <cstdint>
#include <vector>

#include "cleave/checkpoint/run_folder.h"
#include "cleave/mesh/mesh.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/resume.h"

namespace cleave::inline train {

/// Loads and saves a run; the only owner of its --out folder. Collective: all ranks make the same
/// calls.
class Checkpointer {
 public:
  /// Takes the lock of the folder. All arguments must outlive the object. Throws as RunFolder().
  Checkpointer(const TrainSetup& setup, World& world, const Mesh& mesh, const Axis& everyone,
               RankModel& rank);

  /// Loads the weights, or initializes them, and chooses the library of matrix products. A resumed
  /// run also gets its optimizer and `state`. Throws Error, kUsage for options that the run cannot
  /// resume with.
  void load(RunState& state);
  /// Checks that the disk has space for the checkpoints of the rest of the run. Throws Error(kIo).
  void require_space(const RunState& state) const;

  /// Whether the run saves after state.step, if it is not its last step.
  [[nodiscard]] bool is_due(const RunState& state) const;
  /// Saves; with --async-save a thread writes. Throws as RunFolder::save().
  void save(const RunState& state);
  /// Completes an async save that all ranks have written. Call it after each step.
  void poll();
  /// Completes a pending async save.
  void wait() { folder_.wait_for_save(); }
  /// Completes a pending save, and saves the last step unless it is saved already.
  void finish(const RunState& state);

  /// Keeps the checkpoint of the best evaluation so far, if there is one, in addition to the
  /// newest.
  void keep_best(const RunState& state);
  /// Gives the launcher the command that it prints when ranks die. Called once there is a complete
  /// checkpoint: before, nothing can be resumed.
  void note_resumable();

  /// Seconds in save() so far.
  [[nodiscard]] double save_seconds() const { return save_s_; }

 private:
  void require_newest() const;
  void load_weights();
  void forget_best_of_other_data(const Json& saved, RunState& state) const;
  void set_aside_newer();
  void check_changes(const Json& saved, const RunState& state) const;
  [[nodiscard]] Checkpoint checkpoint(const RunState& state) const;
  [[nodiscard]] int64_t saves_ahead(const RunState& state) const;
  void write(const RunState& state, bool async);
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  const TrainSetup& setup_;
  World& world_;
  const Mesh& mesh_;
  const Axis& everyone_;
  RankModel& rank_;
  RunFolder folder_;
  std::vector<CarriedTensor> carried_;
  int64_t saved_ = -1;         // steps in the newest checkpoint
  bool is_resumable_ = false;  // note_resumable() was called
  double save_s_ = 0;
};

}  // namespace cleave::inline train
