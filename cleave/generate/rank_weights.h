#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// Converts the weights of all Linear layers to a form for inference, which training cannot use:
/// panels, one row per output if they are stored transposed, or 8-bit matrices. The original is
/// freed matrix by matrix, unless an embedding reads it too. With 8-bit matrices, all other weights
/// become fp32, and keys and values are rounded to bf16. Collective over the axis that shards the
/// model.
void prepare_weights(Layer& model, bool to_int8);

}  // namespace cleave
