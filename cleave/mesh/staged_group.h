#pragma once
#include <memory>

#include "cleave/comm/api/device.h"

namespace cleave::inline mesh {

/// Collectives of device memory through host memory: copies to the host, calls the host's
/// collective, copies back. For ranks that share a GPU, which NCCL does not support. Sums have the
/// bits of the host's. Both arguments must outlive the result.
std::unique_ptr<DeviceGroup> staged_group(Device& device, Group& group);

}  // namespace cleave::inline mesh
