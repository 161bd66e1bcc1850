#pragma once
#include <map>
#include <string>

#include "cleave/mesh/axis.h"

namespace cleave::inline mesh {

/// An axis without peers, for checking the layout of any rank before ranks start. Collectives of
/// tensors on the meta device (shapes only) move nothing and are counted; collectives of other
/// tensors are Error(kBug).
Axis dry_axis(const std::string& name, int rank, int size);

/// Traffic of an axis from this rank to other ranks.
struct DryTraffic {
  int64_t num_calls = 0;
  int64_t bytes = 0;  ///< sent, by bandwidth-optimal algorithms
};

/// Traffic by kind of collective: "all-reduce", "all-gather", "reduce-scatter", "broadcast",
/// "all-to-all", "send", "recv", "barrier".
using DryCalls = std::map<std::string, DryTraffic>;

/// The traffic of all kinds together.
DryTraffic sum_of(const DryCalls& calls);

/// Traffic of a dry axis since its creation; nothing for other axes.
DryCalls dry_calls(const Axis& axis);

}  // namespace cleave::inline mesh
