#pragma once
#include <c10/core/Device.h>

#include "cleave/nn/layer.h"

namespace cleave {

/// Moves the memory of the model's parameters to another device; parameters without memory stay
/// without. Call it before an optimizer holds the leaves, since leaves are replaced.
void move_to(Layer& model, at::Device device);

}  // namespace cleave
