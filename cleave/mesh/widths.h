#pragma once
#include "cleave/mesh/axis.h"

namespace cleave {

/// Throws Error(kShape) naming `site` unless there is one width for each rank of the axis.
void check_widths(const Axis& axis, Widths widths, std::string_view site);

/// The shape of `t` with `size` elements in dim `dim`, which is in [0, t.dim()).
std::vector<int64_t> with_dim(const Tensor& t, int64_t dim, int64_t size);

}  // namespace cleave
