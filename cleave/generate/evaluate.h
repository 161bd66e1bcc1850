#pragma once
#include "cleave/data/dataset.h"
#include "cleave/model/model.h"

namespace cleave {

/// Loss over data.
struct EvalResult {
  double loss_sum = 0;     ///< of -log(probability), natural
  int64_t num_tokens = 0;  ///< labels that counted

  [[nodiscard]] double loss() const;        ///< mean per token
  [[nodiscard]] double perplexity() const;  ///< exp(loss)
};

/// How well a model on `tp` tells each next token of every sample from those before it in the
/// sample; the same on all ranks. `batch_size` samples at once. Throws Error(kShape) for a sample
/// longer than the model's positions, Error(kUsage) when no token has one before it.
EvalResult evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size);

}  // namespace cleave
