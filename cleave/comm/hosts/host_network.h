#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/hosts/host_exchange.h"
#include "cleave/comm/hosts/mpi.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// The network between a job's hosts beside its TCP connections: MPI. A process has at most one,
/// for all its jobs.
class HostNetwork {
 public:
  /// Begins MPI and waits for all ranks. Throws Error(kShape) if MPI's world is not the launcher's,
  /// which `environment` describes. Ends the process with the exit code of a timeout if the other
  /// ranks do not begin MPI within options.timeout_s. With options.fast_sums its exchanges can sum.
  HostNetwork(std::unique_ptr<Mpi> mpi, const Environment& environment, const RankOptions& options);

  /// Fills in a rendezvous address that the environment lacks: rank 0's, or else the name of rank
  /// 0's host and a free port there. All ranks call it and wait for each other.
  void find_rendezvous(Environment& environment);

  /// Whether its exchanges can add numbers (--fast-sums).
  [[nodiscard]] bool has_fast_sums() const { return fast_sums_; }
  /// A channel for a group: unique among the groups with this first member, which calls it.
  int64_t new_channel() { return num_channels_++; }
  /// The exchange of a lane. `ranks`: its ranks, by host. `first`: the rank of the group's first
  /// member, which made `channel`.
  std::unique_ptr<HostExchange> connect(const std::shared_ptr<RankEndpoint>& job,
                                        const std::vector<int>& ranks, int host, int first,
                                        int64_t channel);

  /// Lets MPI continue the transfers of earlier exchanges. Called in every wait for another rank: a
  /// peer may wait for bytes of an exchange that has ended here and that MPI still holds.
  void progress() { mpi_->progress(); }

  /// When the process exits, MPI ends all ranks with this code; only the first call counts. Without
  /// a call, it ends in order.
  void note_failure(Code code);
  /// Ends MPI. Called once, when the process exits. Without a failure MPI waits for all ranks: the
  /// process ends with the exit code of a timeout if one does not come within the timeout.
  void end();

 private:
  std::unique_ptr<Mpi> mpi_;
  std::string place_;  // "rank 1 of 4"
  double timeout_s_;
  bool fast_sums_;
  std::atomic<int64_t> num_channels_ = 0;
  std::atomic<int> failure_ = 0;  // an exit code
};

/// The network of a job on several hosts; nullptr if it has only its TCP connections. It is MPI if
/// options.transport is "mpi", or if that is "auto", this build has the plugin of an MPI, and the
/// launcher starts the same MPI. Throws Error(kUsage) if the transport is unknown, or MPI is
/// missing for it or for options.fast_sums, Error(kIo) if the plugin cannot be loaded, and what
/// HostNetwork throws.
std::shared_ptr<HostNetwork> host_network(const Environment& environment,
                                          const RankOptions& options);

}  // namespace cleave::inline comm
