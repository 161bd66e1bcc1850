#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

/// What a launcher told this process about its place in a job.
struct Environment {
  int rank = 0;              ///< 0 <= rank < world_size
  int world_size = 1;        ///< >= 1
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks of this host
  std::string master_addr;   ///< where rank 0 is; "" when nobody said
  int master_port = 0;       ///< 0 when nobody said
  std::string job_id;        ///< of the launcher or scheduler; "" when it has none
  std::string token_file;  ///< of CLEAVE_TOKEN_FILE: ranks on other hosts must hold the same token
  int num_restarts = 0;    ///< times that the launcher has started the job again
  int job_fd = -1;         ///< descriptor of the shared segment of `cleave launch`, or -1
};

/// Reads one environment variable; nullptr when it is not set.
using GetVariable = std::function<const char*(const char*)>;

/// The place that the environment names; nothing when no launcher started this process.
///
/// Understands RANK and WORLD_SIZE (torchrun, Kubernetes, `cleave launch`), OMPI_COMM_WORLD_*,
/// PMI_* (MPICH, Intel MPI), PMIX_RANK and SLURM_* of an srun step, in this order. Where ranks meet
/// is MASTER_ADDR and MASTER_PORT; a step of srun without them has its first host and a port made
/// of its job id. Under torchrun, which listens at MASTER_PORT itself, it is the next port. Throws
/// Error(kUsage) naming the variable that is missing or no number, Error(kShape) when rank <
/// world_size does not hold.
std::optional<Environment> read_environment(const GetVariable& get);
std::optional<Environment> read_environment();

/// Whether the launcher has started this job before.
bool is_restart();

/// Takes `--local-rank N`, `--local-rank=N` and the same with an underscore, which older launchers
/// add, out of a command line. Throws Error(kUsage) when N is no number.
std::optional<int> take_local_rank(std::vector<std::string>& arguments);

/// Compares a local rank from the command line with the environment; Error(kShape) names both.
void check_local_rank(const Environment& environment, std::optional<int> local_rank);

}  // namespace cleave
