#pragma once
#include <memory>

#include "cleave/mesh/cuda.h"

namespace cleave::fake_device {

/// This host's fake devices, as Cleave sees those of an accelerator.
std::unique_ptr<Cuda> make_runtime();

}  // namespace cleave::fake_device
