#pragma once
#include <memory>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/shm/shared_segment.h"
#include "cleave/comm/api/world.h"

namespace cleave {

/// Joins the job that the environment names.
///
/// Under `cleave launch` the shared segment is inherited; under torchrun, mpirun or srun rank 0 makes it
/// and hands it to the others, which are waited for up to options.timeout_s.
///
/// Ranks on several hosts meet at MASTER_ADDR:MASTER_PORT and then keep a TCP connection each.
///
/// Throws Error(kShape) on all ranks when they disagree on the world size, doubled a rank or run
/// different versions, Error(kTimeout) naming the ranks that did not come, Error(kIo) when the
/// meeting folder is not safe to use.
std::unique_ptr<World> connect(const Environment& environment, const RankOptions& options);

/// The meeting of connect() alone: the segment that rank 0 made. For ranks of one host.
std::shared_ptr<SharedSegment> rendezvous_ranks(const Environment& environment, double timeout_s);

}  // namespace cleave
