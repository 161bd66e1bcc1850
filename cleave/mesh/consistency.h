#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/mesh/axis.h"

namespace cleave::inline mesh {

/// Settings that must be the same on all ranks, as (name, value): {"--lr", "0.001"}.
using ConfigFingerprint = std::vector<std::pair<std::string, std::string>>;

/// Compares the ranks' settings before they start to work. Without it, ranks that a launcher
/// started with different options could train without an error. Collective over `everyone`, the
/// axis of all ranks. Throws Error(kShape) with the first difference and both values.
void check_consistent(const ConfigFingerprint& config, const Axis& everyone);

}  // namespace cleave::inline mesh
