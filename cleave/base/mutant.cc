#include "cleave/base/mutant.h"

#ifdef CLEAVE_MUTANTS
#include <cstdlib>

namespace cleave {

bool mutant_enabled(std::string_view name) {
  const char* enabled = std::getenv("CLEAVE_MUTANT");  // NOLINT(concurrency-mt-unsafe)
  return enabled != nullptr && name == enabled;
}

}  // namespace cleave
#endif
