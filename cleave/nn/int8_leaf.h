#pragma once
#include "cleave/nn/parameter.h"

namespace cleave::inline nn {

/// Fills a frozen int8 parameter (Parameter::freeze_int8) from this rank's leaf elements `part` of
/// any floating-point type. A row's scale is that of the whole row, whatever the layout, so every
/// layout has the same values. Collective over the axes that shard rows: tensor-parallel ranks if
/// they shard the inputs, data-parallel ranks if the leaf is flat. Throws Error(kNumerics) naming
/// the parameter, on all of these ranks, if it is not finite.
void fill_int8(Parameter& parameter, const Tensor& part);

/// The row (index of int8_row_dim) of each element of a parameter's flat leaf, within this rank's
/// part: [leaf's elements] int64. `row_dim`: the dim of the rows.
Tensor rows_of_flat(const Parameter& parameter, int row_dim);

}  // namespace cleave::inline nn
