#include "cleave/comm/rank_process.h"

#include <iostream>

#include "cleave/comm/rank_end.h"
#include "cleave/comm/rendezvous.h"

namespace cleave {

int run_rank(const Environment& environment, const std::function<void(World&)>& body,
             const RankOptions& options) {
  std::unique_ptr<World> world;
  try {
    world = connect(environment, options);
    body(*world);
    return 0;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    // Before `world` goes, which would look like an orderly leave.
    if (world) world->abort(error);
    const bool launcher_prints = world && environment.job_fd >= 0;
    if (!launcher_prints) {
      std::cerr << str("cleave: rank ", environment.rank, ": ", error.what(), "\n");
    }
    return static_cast<int>(error.code());
  }
}

}  // namespace cleave
