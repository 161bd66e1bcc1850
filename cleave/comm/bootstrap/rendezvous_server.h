#pragma once
#include <vector>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/net/tcp.h"

namespace cleave::inline comm {

/// Rank 0's side of the rendezvous: serves all other ranks, each a RendezvousClient, until all have
/// joined and reported that they are ready. `address`: of `listener`.
///
/// One thread waits for all connections with epoll. Reads and writes do not block, and each peer
/// has kAuthTimeout to join, so a slow or hostile one delays nobody. An error that a rank reports,
/// or the end of a rank, goes to all ranks.
///
/// Returns the connections by rank (rank 0's own is not open). Throws as rendezvous_hosts() does,
/// Error(kUsage) if the limit on open files is too low for all ranks.
std::vector<Descriptor> serve_rendezvous(const Environment& environment, const HostAddress& address,
                                         Descriptor listener, double timeout_s);

}  // namespace cleave::inline comm
