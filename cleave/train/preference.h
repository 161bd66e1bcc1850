#pragma once
#include <cstdint>

#include "cleave/layout/dtensor.h"

/// Direct preference optimization (Rafailov et al., 2023). Shape letters: P pairs, B = 2 P
/// sequences in the order chosen, rejected, chosen, ...; T tokens.
namespace cleave::inline train {

/// The log-probability of each sequence: the sum over the tokens that have a target. `result` is a
/// model's: logits [B, T, V] Replicate or Shard(-1), or the losses of the tokens [B, T] if its head
/// computes them (HeadLoss::is_per_token). targets [B, T] as targets_of() gives them; [B] fp64,
/// differentiable. Throws as cross_entropy() does. Collective if the logits are sharded.
Tensor sequence_log_probs(const DTensor& result, const Tensor& targets);

/// Which pairs count: those whose sequences both have a target. targets [B, T]; [P] bool.
Tensor pairs_with_targets(const Tensor& targets);

/// Losses and reward margins of pairs, [P] fp64. Only the losses are differentiable.
struct PairTerms {
  Tensor losses;   ///< -log sigmoid(margin)
  Tensor margins;  ///< chosen reward minus rejected reward
};

/// A sequence's reward is beta times its log-probability minus that of the reference model; both
/// [B].
PairTerms pair_terms(const Tensor& log_probs, const Tensor& reference, double beta);

/// Sums over the pairs of a micro-batch that count.
struct PairSums {
  Tensor loss;         ///< one number, differentiable
  double margin = 0;   ///< of reward margins
  int64_t right = 0;   ///< pairs whose chosen reward is the larger one
  int64_t number = 0;  ///< pairs
};

/// The sums from a model's result for pairs, as in sequence_log_probs().
PairSums pair_sums(const DTensor& result, const Tensor& targets, const Tensor& reference,
                   double beta);

}  // namespace cleave::inline train
