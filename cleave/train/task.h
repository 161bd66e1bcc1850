#pragma once
#include <memory>
#include <optional>

#include "cleave/data/batch.h"
#include "cleave/model/model.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline train {

/// How samples become the batches of a task. The same on every layout.
struct BatchRules {
  int64_t pad_id = 0;
  std::optional<MaskingOptions> masking{};  ///< how tokens of text are masked

  /// Sequences [begin, end) of the global batch of `step`, ready for forward and targets_of.
  [[nodiscard]] Batch make(const Dataset& data, const SampleOrder& order, int64_t step,
                           int64_t begin, int64_t end) const;
  /// As make(), for evaluation without shuffle: which tokens are masked is a function of the
  /// sample's index, so that the result does not depend on the batch size.
  [[nodiscard]] Batch make_for_eval(const Dataset& data, const SampleOrder& order, int64_t step,
                                    int64_t begin, int64_t end) const;
};

/// Seed of the masks of evaluation data: `train`, whatever its --seed, and `eval` mask the same
/// tokens.
inline constexpr uint64_t kEvalSeed = 0;

/// The rules for a model and data. Masked-LM models mask tokens of text; rows of ids already have
/// labels. Throws Error(kUsage) if masking needs a mask token that the tokenizer does not have.
BatchRules batch_rules(const Model& model, const Tokenizer* tokenizer, bool data_is_text,
                       uint64_t seed);

/// The task of a model. Throws Error(kUsage) for one without a head.
Task task_of(const Model& model);

/// The targets of a model's logits: next tokens, masked tokens, or classes, int64, [B, T], or [B]
/// for a classifier; or the numbers of a regression, [B] fp64; or those of each class, [B, C] fp64
/// (kMultilabel). has_label() says where there are any.
Tensor targets_of(const Batch& batch, Task task);

/// What the loss of these targets is a mean over: the number of targets (B times C for
/// kMultilabel), or of pairs (kDpo).
Tensor num_terms(const Tensor& targets, Task task);

/// How many predictions of a classifier are correct. Logits [B, C], targets [B]. Collective if the
/// classes are sharded.
int64_t num_right(const DTensor& logits, const Tensor& targets);

}  // namespace cleave::inline train
