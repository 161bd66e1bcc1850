#pragma once
#include <vector>

#include "cleave/planner/cluster.h"

namespace cleave::inline planner {

/// The clusters that have a name. Data sheets give speeds, memory and links; FittedConstants come
/// from tools/fit_planner.py on published runs, or from the nearest kind of machine that has some.
const std::vector<Cluster>& cluster_presets();

}  // namespace cleave::inline planner
