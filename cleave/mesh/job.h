#pragma once
#include <functional>
#include <string>

#include "cleave/comm/api/world.h"

namespace cleave {

struct JobOptions {
  int num_ranks = 1;
  /// Of libtorch's kernels; 0 = one on each of the rank's processors. Where there are enough, each
  /// rank keeps to its own: an equal share of those that it has in common with others.
  int threads_per_rank = 0;
  RankOptions ranks{};
  std::string device = "cpu";  ///< cpu, or cuda: one rank a process, each with a GPU of its own
};

/// Ranks that a launcher started in this job; 0 when this process was started by hand.
int launched_world_size();

/// Runs `body` on all ranks: as one rank of the job that a launcher started, else on rank threads
/// of this process. Throws Error(kShape) when the launcher's world is not num_ranks, or this host
/// has fewer GPUs than ranks; Error(kUsage) when there is no device to compute on, or several ranks
/// on GPUs were not started as processes; the root cause when any rank fails. What nobody catches
/// ends the process with one line and the exit code of its kind (comm/launch/failure.h).
void run_job(const JobOptions& options, const std::function<void(World&)>& body);
/// The same on as many ranks as a launcher started, or `num_ranks` where none did.
void run_job(int num_ranks, const std::function<void(World&)>& body);

}  // namespace cleave
