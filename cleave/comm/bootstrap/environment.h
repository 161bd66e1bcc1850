#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cleave::inline comm {

/// This process's place in a job, as its launcher set it in the environment.
struct Environment {
  int rank = 0;              ///< 0 <= rank < world_size
  int world_size = 1;        ///< >= 1
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks of this host
  std::string host;  ///< the launcher's number of this host (GROUP_RANK, SLURM_NODEID), or ""
  std::string master_addr;  ///< host of rank 0; "" if not set
  int master_port = 0;      ///< 0 if not set
  std::string job_id;       ///< of the launcher or scheduler; "" if it has none
  std::string token_file;   ///< CLEAVE_TOKEN_FILE: ranks on other hosts must hold the same token
  int num_restarts = 0;     ///< how often the launcher has restarted the job
  int job_fd = -1;          ///< descriptor of the shared segment of `cleave launch`, or -1
  bool starts_mpi = false;  ///< the launcher also starts MPI: mpirun, srun --mpi=...
  std::string mpi;  ///< the MPI whose variables are set, with torchrun too: openmpi, mpich or ""
};

/// Reads one environment variable; nullptr when it is not set.
using GetVariable = std::function<const char*(const char*)>;

/// Reads this process's place in its job; nullopt if no launcher started it.
///
/// Understands RANK and WORLD_SIZE (torchrun, Kubernetes, `cleave launch`), OMPI_COMM_WORLD_*,
/// PMI_* (MPICH, Intel MPI), PMIX_RANK and SLURM_* of an srun step, in this order. The rendezvous
/// address is MASTER_ADDR and MASTER_PORT. An srun step without them uses its first host and a port
/// derived from its job id. Under torchrun, which listens at MASTER_PORT itself, the rendezvous
/// uses the next port. Throws Error(kUsage) naming the variable that is missing or not a number,
/// Error(kShape) unless rank < world_size.
std::optional<Environment> read_environment(const GetVariable& get);
std::optional<Environment> read_environment();

/// Whether the launcher has restarted this job.
bool is_restart();

/// Removes `--local-rank N`, `--local-rank=N` and the forms with an underscore, which older
/// launchers add, from a command line. Throws Error(kUsage) if N is not a number.
std::optional<int> take_local_rank(std::vector<std::string>& arguments);

/// Throws Error(kShape) naming both if the command line's local rank is not the environment's.
void check_local_rank(const Environment& environment, std::optional<int> local_rank);

}  // namespace cleave::inline comm
