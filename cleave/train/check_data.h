#pragma once
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// Refuses data that the model of a run cannot use, before the run starts.
///
/// Throws Error(kShape) for rows of ids that are longer than the model's positions, and for a
/// --tokenizer with more ids than the model's vocabulary; Error(kFormat) for rows of --eval-data
/// without a target.
void check_data(const TrainSetup& setup, const ModelFacts& facts);

}  // namespace cleave::inline train
