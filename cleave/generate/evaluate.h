#pragma once
#include <functional>

#include "cleave/data/dataset.h"
#include "cleave/model/model.h"
#include "cleave/train/step.h"

namespace cleave {

/// Evaluates a model on `tp`: its loss on next tokens, on tokens masked by `rules`, or on classes.
/// The same on all ranks. Runs `batch_size` samples at a time and calls `on_samples` with the
/// number of finished ones. Throws Error(kShape) for a sample longer than the model's positions,
/// Error(kUsage) if the data has no labels.
EvalSum evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                 const BatchRules& rules = {}, const std::function<void(int64_t)>& on_samples = {});

}  // namespace cleave
