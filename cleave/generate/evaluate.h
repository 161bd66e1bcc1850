#pragma once
#include "cleave/data/dataset.h"
#include "cleave/model/model.h"
#include "cleave/train/task.h"

namespace cleave {

/// Loss over data.
struct EvalResult {
  double loss_sum = 0;     ///< of -log(probability), natural
  int64_t num_labels = 0;  ///< that counted: tokens, or rows of a classifier
  int64_t num_right = 0;   ///< of a classifier's rows

  [[nodiscard]] double loss() const;        ///< mean per label
  [[nodiscard]] double perplexity() const;  ///< exp(loss)
  [[nodiscard]] double accuracy() const;    ///< of a classifier, 0 to 1
};

/// How well a model on `tp` tells each next token of every sample from those before it, the tokens
/// that `rules` hide, or the classes of the samples; the same on all ranks. `batch_size` samples at
/// once. Throws Error(kShape) for a sample longer than the model's positions, Error(kUsage) when
/// there is nothing to tell.
EvalResult evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                    const BatchRules& rules = {});

}  // namespace cleave
