#pragma once
#include <string>

#include "cleave/mesh/axis.h"

namespace cleave {

/// An axis without peers: a layout can be worked out and checked for any rank before a rank starts.
/// Its collectives are Error(kBug).
Axis dry_axis(const std::string& name, int rank, int size);

}  // namespace cleave
