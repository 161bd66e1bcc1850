#pragma once
#include <functional>
#include <optional>

#include "cleave/data/dataset.h"
#include "cleave/generate/options.h"
#include "cleave/generate/runnable.h"
#include "cleave/model/model.h"

namespace cleave::inline generation {

/// Whether the options ask for --task dpo. Throws Error(kUsage) for a task that the model does not
/// have, and for options of dpo without it.
bool evaluates_pairs(const EvalOptions& options, const Runnable& runnable);

/// The reference model of --task dpo: --reference, else an adapter's base model, in the dtype of
/// `runnable`. Throws Error(kUsage) if there is neither, or if it has another vocabulary than the
/// model.
Runnable reference_of(const EvalOptions& options, const Runnable& runnable);

/// Log-probabilities of the answers of all pairs, [pairs, 2] fp64 on the CPU, chosen and rejected;
/// the same on all ranks. Runs `batch_size` pairs at a time and calls `on_pairs` with the number of
/// finished ones. Throws Error(kShape) for a sequence longer than the model's positions.
Tensor pair_log_probs(Model& model, const Axis& tp, const Dataset& pairs, int64_t batch_size,
                      const std::function<void(int64_t)>& on_pairs);

/// Means over pairs.
struct PreferenceScore {
  double loss = 0;           ///< -log sigmoid(reward margin)
  double reward_margin = 0;  ///< chosen reward minus rejected reward
  int64_t right = 0;         ///< pairs whose chosen reward is the larger one
  int64_t pairs = 0;
};

/// The score of a model's log-probabilities beside those of the reference model. Throws
/// Error(kNumerics) if some are not finite.
PreferenceScore preference_score(const Tensor& log_probs, const Tensor& reference, double beta);

}  // namespace cleave::inline generation
