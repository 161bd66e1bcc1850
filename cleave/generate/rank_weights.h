#pragma once
#include <string>

#include <c10/core/ScalarType.h>

#include "cleave/nn/layer.h"

namespace cleave {

/// The type in which weights are read and activations run for a --dtype flag: int8 weights are made
/// of fp32 ones, and activations between products are fp32.
at::ScalarType weight_type(const std::string& dtype);

/// For dtype int8: makes 8-bit matrices of the weights of all Linear layers and lets the wide ones
/// go, except those that an embedding reads too. Does nothing for other types. To be called when
/// the weights are there and only run from now on; collective over the axis that splits the model.
void prepare_weights(Layer& model, const std::string& dtype);

}  // namespace cleave
