#pragma once
#include <optional>
#include <vector>

#include "cleave/comm/bootstrap/rendezvous_protocol.h"

namespace cleave::inline comm {

/// A rank's side of the rendezvous with rank 0. Its functions are called in the order in which they
/// are declared, receive_outcome() once for each outcome: all ranks have joined; all have reported.
class RendezvousClient {
 public:
  /// `environment` must outlive it; `address`: rank 0's.
  RendezvousClient(const Environment& environment, const HostAddress& address, double timeout_s);

  /// Connects to rank 0. Throws Error(kTimeout), and as refuse_rank_zero_of_one_host() does.
  void connect();
  /// Sends the token and the join request. `own`: where this rank accepts connections.
  void join(const Endpoint& own) const;
  /// Waits for rank 0's outcome. Throws the error that ends the job, Error(kPeer) if rank 0 ends
  /// the connection, Error(kIo) if it is another program.
  void receive_outcome() const;

  /// What ranks need to connect to each other.
  struct Table {
    Token key;                        ///< of this job, random
    std::vector<Endpoint> endpoints;  ///< of the ranks below this one
  };
  /// Receives the table. Rank 0 sends it after the first outcome if `own` had a port.
  [[nodiscard]] Table receive_table() const;
  /// Reports to rank 0 that this rank is ready, or why not. A reported error ends the rendezvous of
  /// all ranks.
  void report(const std::optional<Error>& problem) const;

  /// The connection to rank 0.
  [[nodiscard]] const Descriptor& socket() const { return socket_; }
  Descriptor take_socket() { return std::move(socket_); }
  /// When this rank gives up.
  [[nodiscard]] Deadline deadline() const { return deadline_; }

  /// The error that a rank 0 already listening there sends; nullopt if no Cleave rank 0 answers.
  static std::optional<Error> error_of_running_server(const Environment& environment,
                                                      const HostAddress& address);

 private:
  const Environment& environment_;
  HostAddress address_;
  double timeout_s_;
  Deadline deadline_, outcome_deadline_;
  Descriptor socket_;
};

}  // namespace cleave::inline comm
