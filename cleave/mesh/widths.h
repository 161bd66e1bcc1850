#pragma once
#include "cleave/mesh/axis.h"

namespace cleave {

/// Throws Error(kShape) naming `site` unless there is one width for each rank of the axis.
void check_widths(const Axis& axis, Widths widths, std::string_view site);

}  // namespace cleave
