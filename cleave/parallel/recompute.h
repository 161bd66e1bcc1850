#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// Makes a layer keep only its input: backward runs its forward again (activation checkpointing).
/// The result is exact, with dropout too: masks are functions of the context. Apart from parameters
/// and other leaves, the layer may read no tensor with a gradient but its input; otherwise backward
/// throws Error(kUsage). Throws Error(kUsage) if the layer is fully sharded already: FSDP must wrap
/// the recomputation to provide its weights.
void recompute(Layer& layer);

}  // namespace cleave
