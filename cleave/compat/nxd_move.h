#pragma once
#include <cstdint>

#include "cleave/nn/layer.h"

namespace cleave::nxd {

/// Puts every parameter that is on no axis yet on the tensor-parallel group, whole on each rank,
/// and names the tree.
void put_on_group(Layer& model);

/// Gives the parallel layers' parameters memory of each layer's own type. Throws Error(kUsage) when
/// a layer asked for another device.
void allocate_parallel_layers(Layer& model, at::Device device, uint64_t seed);

}  // namespace cleave::nxd
