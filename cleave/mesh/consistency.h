#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/mesh/axis.h"

namespace cleave {

/// What a rank was told, by name: {"--lr", "0.001"}.
using ConfigFingerprint = std::vector<std::pair<std::string, std::string>>;

/// Compares what the ranks of a job were told, before they work: ranks that a launcher started with
/// different options could train on without a word. Collective. Throws Error(kShape) with the first
/// difference and both values.
void check_consistent(const ConfigFingerprint& told, const Axis& everyone);

}  // namespace cleave
