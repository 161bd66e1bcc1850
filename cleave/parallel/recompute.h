#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// Lets a layer keep only its input: backward runs its forward again. Exact, dropout included,
/// whose masks are functions of the context. Throws Error(kUsage) when FSDP is on the layer
/// already: it provides the weights that the second forward reads. Its input is the only tensor
/// with a gradient that it may read beside parameters; backward throws Error(kUsage) for another
/// one.
void recompute(Layer& layer);

}  // namespace cleave
