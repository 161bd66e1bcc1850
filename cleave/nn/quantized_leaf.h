#pragma once
#include "cleave/nn/parameter.h"

namespace cleave::inline nn {

/// Fills a frozen parameter in fewer bits (Parameter::freeze_quantized) from this rank's leaf
/// elements `part` of any floating-point type. Scales are those of whole rows or blocks, whatever
/// the layout, so every layout has the same values. Collective over the axes that shard them:
/// tensor-parallel ranks if they shard the inputs, data-parallel ranks if the leaf is flat. Throws
/// Error(kNumerics) naming the parameter, on all of these ranks, if it is not finite.
void fill_quantized(Parameter& parameter, const Tensor& part);

/// set_quantized() without values, on the meta device.
void set_quantized_meta(Parameter& parameter);

/// The values of a quantized parameter's leaf, in `type` and leaf_shape().
Tensor values_of_leaf(const Parameter& parameter, at::ScalarType type);

/// The row (index of `row_dim`, the dim of a layer's outputs) of each element of a parameter's flat
/// leaf, within this rank's part: [leaf's elements] int64.
Tensor rows_of_flat(const Parameter& parameter, int row_dim);

}  // namespace cleave::inline nn
