#pragma once
#include <string>

#include "cleave/mesh/axis.h"

namespace cleave {

/// An axis without peers: a layout can be worked out and checked for any rank before a rank starts.
/// Collectives of tensors on the meta device, which have shapes alone, move nothing and are
/// counted; those of others are Error(kBug).
Axis dry_axis(const std::string& name, int rank, int size);

/// What went over an axis from this rank to others.
struct DryTraffic {
  int64_t num_calls = 0;
  int64_t bytes = 0;  ///< sent, by algorithms that send as little as can be
};

/// Of a dry axis since it was made; nothing for an axis of one rank.
DryTraffic dry_traffic(const Axis& axis);

}  // namespace cleave
