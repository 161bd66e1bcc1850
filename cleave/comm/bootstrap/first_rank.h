#pragma once
#include <optional>

#include "cleave/base/log.h"
#include "cleave/comm/bootstrap/environment.h"

namespace cleave::inline comm {

/// Whether this process is rank 0 of its launcher, or has no launcher: what is printed once per
/// job, it prints.
inline bool is_first_rank() {
  const std::optional<Environment> environment = read_environment();
  return !environment || environment->rank == 0;
}

/// log_warning() once per job.
template <class... Parts>
void log_warning_once(const Parts&... parts) {
  if (is_first_rank()) log_warning(parts...);
}

}  // namespace cleave::inline comm
