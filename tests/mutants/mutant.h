#pragma once
#include <cstdlib>
#include <string_view>

namespace cleave {

/// Whether CLEAVE_MUTANT in the environment enables the mutant with this name.
inline bool mutant_enabled(std::string_view name) {
  const char* enabled = std::getenv("CLEAVE_MUTANT");  // NOLINT(concurrency-mt-unsafe)
  return enabled != nullptr && name == enabled;
}

}  // namespace cleave
