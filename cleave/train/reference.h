#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"
#include "cleave/comm/api/world.h"
#include "cleave/data/order.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

class BatchLoader;
class RankModel;
class StopRequest;

/// The log-probabilities of a run's pairs under the reference model, which is the model before the
/// first step. They are computed once and are a part of every checkpoint, so that a resumed run has
/// the same.
struct ReferenceLogProbs {
  Tensor data;       ///< of --data: [pairs, 2] fp64, chosen and rejected
  Tensor eval_data;  ///< of --eval-data; undefined without it
  /// The bytes of the checkpoint's file kReferenceName. Its tensors are named by the checksums of
  /// the data.
  std::string file;

  /// Reads the log-probabilities of a checkpoint, and keeps its file: if the run resumes without
  /// --eval-data, the next checkpoint still has those of the earlier --eval-data. Throws
  /// Error(kUsage) if the run was started on other data.
  static ReferenceLogProbs read(const std::filesystem::path& checkpoint, const TrainSetup& setup);
};

/// The rows of a [pairs, 2] tensor for the samples at `places` of a step's batch, flattened: [2 x
/// places].
Tensor rows_of_batch(const Tensor& pairs, const SampleOrder& order, int64_t step, Range places);

/// The log-probabilities of the checkpoint that the run resumes from after `steps_done` steps;
/// nullopt for tasks other than dpo, or if the run was stopped before its first step. Throws
/// Error(kUsage) if the run was started with another task or on other data.
std::optional<ReferenceLogProbs> load_reference(const TrainSetup& setup, int64_t steps_done);

/// What reference log-probabilities are computed with.
struct ReferenceRun {
  const TrainSetup& setup;
  const BatchLoader& batches;
  RankModel& rank;
  StopRequest& stop;
  World& world;
};

/// The log-probabilities of all pairs under the present weights; nullopt if a signal ended the run
/// before they were complete. Throws Error(kNumerics) if they are not finite. Collective.
std::optional<ReferenceLogProbs> compute_reference(const ReferenceRun& run);

}  // namespace cleave::inline train
