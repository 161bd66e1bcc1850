#pragma once
#include <string>

#include "cleave/layout/dtensor.h"

namespace cleave::nxd {

/// A value sharded along `dim` in rank order; the ranks exchange the sizes of their shards, which
/// may be uneven. x is [.., shard, ..]; negative dims count from the end. Collective.
DTensor as_sharded(const Tensor& x, const Axis& axis, int64_t dim, const std::string& site);

}  // namespace cleave::nxd
