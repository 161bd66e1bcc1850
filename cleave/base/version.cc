#include "cleave/base/version.h"

namespace cleave::inline base {

std::string_view version() {
  return CLEAVE_VERSION;
}

}  // namespace cleave::inline base
