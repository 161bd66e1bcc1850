#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cleave/mesh/axis.h"
#include "cleave/train/reference.h"
#include "cleave/train/setup.h"
#include "cleave/train/step.h"

namespace cleave::inline train {

/// This rank's micro-batches of a run's training and evaluation data.
class BatchLoader {
 public:
  /// Batches of pairs get the log-probabilities of `reference` as soon as it has a value. `setup`
  /// and `reference` must outlive the loader.
  BatchLoader(const TrainSetup& setup, Axis dp, const std::optional<ReferenceLogProbs>& reference)
      : setup_(setup), dp_(std::move(dp)), reference_(reference) {}

  /// The training batch of a step, counted from 0.
  [[nodiscard]] std::vector<Batch> of_step(int64_t step) const;
  /// This rank's samples of a global batch of `num_samples`, as many micro-batches on every rank.
  /// `data` is the run's training or evaluation data.
  [[nodiscard]] std::vector<Batch> micro_batches(const Dataset& data, int64_t step,
                                                 int64_t num_samples) const;

  /// Training data is shuffled, evaluation data is not.
  [[nodiscard]] SampleOrder order_of(const Dataset& data) const;
  /// The range of a global batch that belongs to this data-parallel rank.
  [[nodiscard]] Range own_range(int64_t num_samples) const;
  /// The data-parallel axis.
  [[nodiscard]] const Axis& dp() const { return dp_; }

 private:
  const TrainSetup& setup_;
  Axis dp_;
  const std::optional<ReferenceLogProbs>& reference_;
};

/// Checks that the ranks of `same_batch`, which train on the same sequences, have read the same
/// first micro-batch. Throws Error(kDesync). Collective.
void check_same_batch(std::span<const Batch> batches, const Axis& same_batch);

}  // namespace cleave::inline train
