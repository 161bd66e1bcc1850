#pragma once
#include <vector>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"

namespace cleave {

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

}  // namespace cleave
