#pragma once
#include <c10/core/Device.h>

#include "cleave/nn/layer.h"

namespace cleave {

/// Puts the memory that the model's parameters have, given or loaded on the processor, on another
/// device; parameters without memory stay without. Before an optimizer holds the leaves.
void move_to(Layer& model, at::Device device);

}  // namespace cleave
