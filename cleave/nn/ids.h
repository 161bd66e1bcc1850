#pragma once
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace cleave::inline nn {

/// Throws Error(kShape) with the prefix `who` unless all ids, on the CPU, are in [0, num_rows).
///
/// Embedding checks ids itself only on the CPU: on a device, the check would make the host wait,
/// and a wrong id ends the process. So check ids before they are moved to a device.
void check_ids(const at::Tensor& ids, int64_t num_rows, const std::string& who);

}  // namespace cleave::inline nn
