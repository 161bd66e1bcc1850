#pragma once
#include <functional>

#include "cleave/data/dataset.h"
#include "cleave/model/model.h"
#include "cleave/train/step.h"

namespace cleave {

/// How well a model on `tp` tells each next token of every sample from those before it, the tokens
/// that `rules` hide, or the classes of the samples; the same on all ranks. `batch_size` samples at
/// once; `on_samples` is told how many are done. Throws Error(kShape) for a sample longer than the
/// model's positions, Error(kUsage) when there is nothing to tell.
EvalSum evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                 const BatchRules& rules = {}, const std::function<void(int64_t)>& on_samples = {});

}  // namespace cleave
