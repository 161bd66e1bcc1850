#pragma once
#include <functional>
#include <string>

#include "cleave/comm/api/world.h"

namespace cleave::inline mesh {

struct JobOptions {
  int num_ranks = 1;
  /// Threads of libtorch's kernels; 0 = one for each of the rank's CPUs. With enough CPUs, each
  /// rank is bound to its own: an equal part of the CPUs that the host's ranks share.
  int threads_per_rank = 0;
  RankOptions ranks{};
  std::string device = "cpu";  ///< cpu, or cuda: one process and one GPU for each rank
};

/// World size of the job that a launcher started; 0 when no launcher started this process.
int launched_world_size();

/// Runs `body` on all ranks: as one rank of the launcher's job if a launcher started this process,
/// otherwise on rank threads of this process. Throws Error(kShape) when the launcher's world size
/// is not num_ranks, or this host has fewer GPUs than ranks; Error(kUsage) when the device is
/// missing, or several ranks on GPUs were not started as processes; the root cause when any rank
/// fails. An uncaught exception ends the process with one line and its exit code
/// (comm/launch/failure.h).
void run_job(const JobOptions& options, const std::function<void(World&)>& body);
/// The same on as many ranks as the launcher started, or on `num_ranks` without a launcher.
void run_job(int num_ranks, const std::function<void(World&)>& body);

}  // namespace cleave::inline mesh
