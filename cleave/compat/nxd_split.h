#pragma once
#include <string>

#include "cleave/layout/dtensor.h"

namespace cleave::nxd {

/// A value of which each rank holds a piece of `dim`, in rank order, of whatever size: the ranks
/// tell each other the sizes. [.., piece, ..] on each rank; negative dims count from the end.
DTensor joinable(const Tensor& x, const Axis& axis, int64_t dim, const std::string& site);

}  // namespace cleave::nxd
