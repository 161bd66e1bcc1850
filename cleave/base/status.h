#pragma once
#include "cleave/base/log.h"

namespace cleave {

/// Whether --quiet was given: the process prints results, warnings and errors, but no progress and
/// no summaries. Set before threads start.
void set_quiet(bool quiet);
bool is_quiet();

/// log_info for what --quiet leaves out.
template <class... Parts>
void log_status(const Parts&... parts) {
  if (!is_quiet()) log_info(parts...);
}

}  // namespace cleave
