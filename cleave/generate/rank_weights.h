#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// Gives the weights of all Linear layers the form that running needs and training cannot use:
/// panels, rows by output where they are stored transposed, or 8-bit matrices. The memory
/// they had goes back, matrix by matrix, except where an embedding reads it too. Beside 8-bit
/// matrices all that is left becomes fp32, but for keys and values, which are rounded to bf16.
/// Collective over the axis that splits the model.
void prepare_weights(Layer& model, bool to_int8);

}  // namespace cleave
