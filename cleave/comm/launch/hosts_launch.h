#pragma once
#include <functional>
#include <string>
#include <vector>

namespace cleave::inline comm {

/// Starts the ranks of one host: the shell command for a host that gets these variables
/// (NAME=value).
using HostCommand = std::function<std::string(const std::vector<std::string>& variables)>;

struct HostsOptions {
  std::vector<std::string> hosts;         ///< in rank order; the first has rank 0
  int ranks_per_host = 1;                 ///< >= 1
  std::vector<std::string> remote_shell;  ///< words; a host and a shell command are appended
  HostCommand command;
  double grace_s = 20;   ///< from a forwarded signal to SIGKILL
  int max_restarts = 0;  ///< how often all ranks are restarted
};

/// Starts ranks on several hosts, each host's by one remote shell, and waits for all of them.
/// Returns the exit code of the first host that failed by itself; 6 (kPeer) for a host that does
/// not answer, 128 + n after a signal.
///
/// After a failure it restarts all ranks on the hosts that still answer, at most `max_restarts`
/// times, with CLEAVE_RESTARTS=n: `cleave train` then fits its layout to the ranks that are left
/// and resumes from its newest checkpoint. A host that answers again is used again. Each restart
/// prints one line. Failures that would recur are not retried (would_recur()).
///
/// Throws Error(kUsage) for a name that is not a host, or appears twice.
int launch_on_hosts(const HostsOptions& options);

}  // namespace cleave::inline comm
