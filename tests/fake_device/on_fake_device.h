#pragma once
#include <memory>

#include "cleave/comm/api/world.h"
#include "cleave/nn/layer.h"
#include "tests/fake_device/device.h"
#include "tests/fake_device/runtime.h"

namespace cleave::fake_device {

/// Gives the calling rank thread the fake device of its rank, and its groups the fake backend.
inline at::Device take_device(World& world) {
  world.use_device(make_runtime()->take(world.rank(), /*timeout_s=*/60));
  return {at::kPrivateUse1, static_cast<at::DeviceIndex>(world.rank())};
}

/// Registers the device before the first backward pass of a test, when libtorch starts a thread for
/// each device that it knows. Each test file has one.
struct RegisterFirst {
  RegisterFirst() { register_device(); }
};

}  // namespace cleave::fake_device
