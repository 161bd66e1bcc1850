#include "cleave/base/mutant.h"

#ifdef CLEAVE_MUTANTS
#include <cstdlib>

namespace cleave {

bool is_planted(std::string_view name) {
  const char* planted = std::getenv("CLEAVE_MUTANT");  // NOLINT(concurrency-mt-unsafe)
  return planted != nullptr && name == planted;
}

}  // namespace cleave
#endif
