#pragma once
#include <vector>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"

namespace cleave {

/// Brings the ranks of several hosts together: returns a TCP connection to each of the others, by
/// rank (the own one is not open). Afterwards nothing of this job listens on any port.
///
/// Rank 0 listens at MASTER_ADDR:MASTER_PORT for as long as the meeting takes. With
/// environment.token_file set only those are let in that hold the same token.
///
/// Throws Error(kUsage) when the environment does not say where, Error(kIo) when the port is taken,
/// Error(kShape) on all ranks when they cannot be one job, Error(kTimeout) naming who did not come
/// or could not be reached.
std::vector<Descriptor> rendezvous_hosts(const Environment& environment, double timeout_s);

}  // namespace cleave
