#pragma once
#include <vector>

#include "cleave/data/batch.h"
#include "cleave/nn/context.h"
#include "cleave/train/task.h"

namespace cleave {

/// What forward is told of a batch's rows, beside what all rows share.
Context context_of(const Batch& batch, Context shared = {});

/// A data-parallel rank's rows as `count` micro-batches of up to `rows` each. Where it has too few
/// rows, the rest are its first row without labels: they add nothing to losses and gradients, and
/// every rank does as many.
std::vector<Batch> micro_batches_of(const Batch& batch, int64_t rows, int64_t count);

/// What logits and targets of some rows are worth.
struct EvalSum {
  double loss_sum = 0;     ///< over labels, of -log(probability), natural
  int64_t num_labels = 0;  ///< that counted: tokens, or rows of a classifier
  int64_t num_right = 0;   ///< of a classifier's rows
  EvalSum& operator+=(const EvalSum& other);

  [[nodiscard]] double loss() const;        ///< mean per label
  [[nodiscard]] double perplexity() const;  ///< exp(loss)
  [[nodiscard]] double accuracy() const;    ///< of a classifier, 0 to 1
};

/// Without gradients. Logits and targets as targets_of gives them. Collective where logits are cut.
EvalSum eval_of(const DTensor& logits, const Tensor& targets, Task task);

}  // namespace cleave
