#pragma once
#include <memory>
#include <vector>

#include "cleave/comm/api/world.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// Joins the job that the environment names.
///
/// Under `cleave launch` the shared segment is inherited. Under torchrun, mpirun or srun, rank 0
/// makes it, waits up to options.timeout_s for the other ranks, and passes it to them.
///
/// Ranks on several hosts rendezvous at MASTER_ADDR:MASTER_PORT and then keep one TCP connection to
/// each other rank. Those of one host also share a segment, which groups inside the host use. If
/// options.transport chooses MPI (host_network()), it starts first, large collectives use it, and
/// MASTER_ADDR and MASTER_PORT are not needed.
///
/// Throws Error(kShape) on all ranks if they disagree on the world size or on how many are on a
/// host, two have the same rank or they run different versions, Error(kTimeout) naming the ranks
/// that did not join, Error(kIo) if the rendezvous folder is not safe to use.
std::unique_ptr<World> connect(const Environment& environment, const RankOptions& options);

/// The rendezvous of connect() without the rest, for ranks of one host: returns the segment that
/// rank 0 made.
std::shared_ptr<SharedSegment> rendezvous_ranks(const Environment& environment, double timeout_s);

/// The segment that the ranks of this host share in a job on several hosts; nullptr if this rank is
/// alone on its host. Its slots have the pids of this host's ranks. Throws as connect() does.
std::shared_ptr<SharedSegment> rendezvous_on_host(const Environment& environment, double timeout_s);

/// For a rank of a job on several hosts that cannot reach rank 0. Rank 0 may be waiting on this
/// host for all ranks, because its LOCAL_WORLD_SIZE is WORLD_SIZE. Then this function reports the
/// difference to all ranks that have joined rank 0, and throws Error(kShape).
void refuse_rank_zero_of_one_host(const Environment& environment);

/// Connects the ranks of several hosts. Returns a TCP connection to each other rank, indexed by
/// rank (this rank's own entry is not open). Afterwards this job listens on no port.
///
/// Rank 0 listens at MASTER_ADDR:MASTER_PORT during rendezvous. If environment.token_file is set,
/// only ranks with the same token may join.
///
/// Throws Error(kUsage) if MASTER_ADDR or MASTER_PORT is missing, Error(kIo) if the port is taken,
/// Error(kShape) on all ranks if they cannot form one job, Error(kTimeout) naming the ranks that
/// did not join or could not be reached.
std::vector<Descriptor> rendezvous_hosts(const Environment& environment, double timeout_s);

}  // namespace cleave::inline comm
