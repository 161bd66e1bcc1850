#pragma once
#include <cstdint>

#include "cleave/nn/layer.h"

namespace cleave::nxd {

/// Replicates every parameter that has no axis yet over the tensor-parallel group, and sets the
/// paths of all layers.
void put_on_group(Layer& model);

/// Allocates and initializes the parallel layers' parameters in each layer's own dtype. Throws
/// Error(kUsage) if a layer was made for another device.
void allocate_parallel_layers(Layer& model, at::Device device, uint64_t seed);

}  // namespace cleave::nxd
