#pragma once
#include <memory>
#include <optional>

#include "cleave/data/batch.h"
#include "cleave/data/masking.h"
#include "cleave/model/model.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// How rows of data become the batches of a task, the same on every layout.
struct BatchRules {
  int64_t pad_id = 0;
  std::optional<MaskingOptions> masking{};  ///< tokens of text are hidden by it

  /// Rows [begin, end) of the global batch of `step`, ready for forward and targets_of.
  [[nodiscard]] Batch make(const Dataset& data, const SampleOrder& order, int64_t step,
                           int64_t begin, int64_t end) const;
  /// The same to measure a model on samples in their order: which tokens of a sample are hidden is
  /// a function of its number, so that the result does not depend on the batch size.
  [[nodiscard]] Batch make_to_measure(const Dataset& data, const SampleOrder& order, int64_t step,
                                      int64_t begin, int64_t end) const;
};

/// The rules of a model on data: masked models hide tokens of text; rows of ids have their labels
/// already. Throws Error(kUsage) when masking needs a mask token that the tokenizer does not have.
BatchRules batch_rules(const Model& model, const Tokenizer* tokenizer, bool data_is_text,
                       uint64_t seed);

/// The task of a model. Throws Error(kUsage) for one without a head.
Task task_of(const Model& model);

/// What a model's logits are compared with: each next token, the hidden tokens, the classes.
/// int64, [B, T], or [B] for a classifier; -100 where there is none.
Tensor targets_of(const Batch& batch, Task task);

/// How many of a classifier's largest logits are at their target. Logits [B, C], targets [B].
/// Collective where the classes are cut.
int64_t num_right(const DTensor& logits, const Tensor& targets);

}  // namespace cleave
