#pragma once
#include <functional>

#include "cleave/comm/world.h"

namespace cleave {

struct JobOptions {
  int num_ranks = 1;
  int threads_per_rank = 0;  ///< of libtorch's kernels; 0 = this host's cores / its ranks
  RankOptions ranks{};
};

/// Ranks that a launcher started in this job; 0 when this process was started by hand.
int launched_world_size();

/// Runs `body` on all ranks: as one rank of the job that a launcher started, else on rank threads
/// of this process. Throws Error(kShape) when the launcher's world is not num_ranks; the root cause
/// when any rank fails.
void run_job(const JobOptions& options, const std::function<void(World&)>& body);

}  // namespace cleave
