#pragma once
#include <string_view>

namespace cleave {

// Mutants: deliberate faults which show that the tests against them can fail. They exist only in
// builds with CLEAVE_MUTANTS, which are never installed. CLEAVE_MUTANT=NAME in the environment
// enables one; tests/mutants lists the test that must then fail.

#ifdef CLEAVE_MUTANTS
/// Whether the mutant with this name is enabled.
bool mutant_enabled(std::string_view name);
#else
/// Whether the mutant with this name is enabled: never in this build.
constexpr bool mutant_enabled(std::string_view /*name*/) {
  return false;
}
#endif

}  // namespace cleave
