#include "cleave/base/version.h"

namespace cleave {

std::string_view version() {
  return CLEAVE_VERSION;
}

}  // namespace cleave
