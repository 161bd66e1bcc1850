#pragma once
#include "cleave/nn/layer.h"

namespace cleave::inline parallel {

/// Makes a layer keep only its inputs: backward runs its forward again (activation checkpointing).
/// The result is exact, with dropout too: masks are functions of the context. Its inputs are x and
/// Context::values, and each gets its gradient. Apart from parameters and other leaves, the layer
/// may read no other tensor with a gradient; otherwise backward throws Error(kUsage). Throws
/// Error(kUsage) if the layer is fully sharded already: FSDP must wrap the recomputation to provide
/// its weights.
void recompute(Layer& layer);

}  // namespace cleave::inline parallel
