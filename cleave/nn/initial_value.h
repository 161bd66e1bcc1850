#pragma once
#include "cleave/nn/layer.h"

namespace cleave::inline nn {

/// p.initial_value() on a device: made there, with the same bits, if the device has a kernel for
/// it, else on the CPU and copied.
Tensor initial_value_on(at::Device device, const Parameter& p, uint64_t seed, at::ScalarType dtype);

/// materialize() and move_to(), with the initial values made on the device.
void materialize_on(at::Device device, Layer& model, const MaterializeOptions& options);

}  // namespace cleave::inline nn
