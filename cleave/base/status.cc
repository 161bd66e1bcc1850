#include "cleave/base/status.h"

namespace cleave {
namespace {

bool quiet_setting = false;

}  // namespace

void set_quiet(bool quiet) {
  quiet_setting = quiet;
}

bool is_quiet() {
  return quiet_setting;
}

}  // namespace cleave
