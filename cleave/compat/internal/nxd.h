#pragma once
#include <cstdint>
#include <string>

#include "cleave/layout/dtensor.h"
#include "cleave/nn/layer.h"

namespace cleave::nxd {

/// Replicates every parameter that has no axis yet over the tensor-parallel group, and sets the
/// paths of all layers.
void put_on_group(Layer& model);

/// Allocates and initializes the parallel layers' parameters in each layer's own dtype. Throws
/// Error(kUsage) if a layer was made for another device.
void allocate_parallel_layers(Layer& model, at::Device device, uint64_t seed);

/// A value sharded along `dim` in rank order; the ranks exchange the sizes of their shards, which
/// may be uneven. x is [.., shard, ..]; negative dims count from the end. Collective.
DTensor as_sharded(const Tensor& x, const Axis& axis, int64_t dim, const std::string& site);

}  // namespace cleave::nxd
