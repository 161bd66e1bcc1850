#pragma once
#include <span>
#include <vector>

#include "cleave/data/batch.h"
#include "cleave/nn/context.h"
#include "cleave/train/task.h"

namespace cleave::inline train {

/// The context of forward for a batch: `shared` with the mask, token types, positions and first row
/// that the batch has.
Context context_of(const Batch& batch, Context shared = {});

/// Sums over the tokens of some sequences, without padding.
struct TokenSums {
  int64_t tokens = 0;
  int64_t lengths = 0;  ///< of each token, the length of its text

  /// The length of texts for which causal attention costs as much per token as for these; 0 without
  /// tokens.
  [[nodiscard]] int64_t length() const;
};

/// The sums of the first `num_rows` sequences of these micro-batches.
TokenSums token_sums(std::span<const Batch> batches, int64_t num_rows);

/// Divides a data-parallel rank's batch into `count` micro-batches of up to `size` samples (a pair
/// stays whole). If it has too few, the rest are its first sample without labels, which adds
/// nothing to losses and gradients. So every rank runs the same number of micro-batches.
std::vector<Batch> micro_batches_of(const Batch& batch, int64_t size, int64_t count);

/// Evaluation sums over batches.
struct EvalSum {
  double loss_sum = 0;     ///< of -ln(probability) or squared errors over labels, or of the losses
                           ///< of pairs
  int64_t num_labels = 0;  ///< tokens, sequences with a class or number, classes of all sequences
                           ///< (kMultilabel), or pairs
  int64_t num_right = 0;   ///< correct predictions of a classifier; pairs that are preferred right
  EvalSum& operator+=(const EvalSum& other);
  /// As [3] fp64, for collectives, and back.
  [[nodiscard]] Tensor tensor() const;
  static EvalSum from(const Tensor& sums);

  [[nodiscard]] double loss() const;        ///< mean per label
  [[nodiscard]] double perplexity() const;  ///< exp(loss)
  [[nodiscard]] double accuracy() const;    ///< of a classifier or of preferences, 0 to 1
};

/// The sums of a batch, without gradients, from a model's result: its logits, or the sum of the
/// losses if its head computes it (HeadLoss). `targets` are those of targets_of(). Collective if
/// the logits are sharded.
EvalSum eval_of(const DTensor& result, const Tensor& targets, Task task);

}  // namespace cleave::inline train
