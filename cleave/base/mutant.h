#pragma once
#include <string_view>

namespace cleave {

// Faults planted to see that the tests against them can fail. They exist in builds with
// CLEAVE_MUTANTS alone, which are never installed; CLEAVE_MUTANT=name in the environment turns one
// on. tests/mutants says which test must then fail.

#ifdef CLEAVE_MUTANTS
/// Whether the fault with this name is on.
bool mutant_enabled(std::string_view name);
#else
/// Whether the fault with this name is on: never in this build.
constexpr bool mutant_enabled(std::string_view /*name*/) {
  return false;
}
#endif

}  // namespace cleave
