#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/launch/host_share.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

struct LaunchOptions {
  int num_ranks = 1;                     ///< 1 to kMaxRanks (512, of one host)
  std::vector<std::string> command;      ///< program and arguments, the same for every rank
  double grace_s = 20;                   ///< from a forwarded signal to SIGKILL
  double stopped_limit_s = 30;           ///< for a rank that is stopped while others have ended
  int max_restarts = 0;                  ///< how often launch() restarts all ranks
  std::vector<std::string> environment;  ///< NAME=value; override the launcher's own
  std::optional<HostShare> share{};      ///< of a job on several hosts; the ranks are this host's
};

/// How a launch ended.
struct LaunchOutcome {
  int exit_code = 0;               ///< of the root cause; 128 + n for a signal
  std::vector<int> exit_codes;     ///< by rank
  std::optional<Abort> cause;      ///< the first failure that a rank or the launcher recorded
  std::vector<std::string> lines;  ///< the failure's description for the user, at most 4 lines
};

/// Starts the ranks of one host as direct children and waits for all of them.
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
/// CLEAVE_JOB_FD, the descriptor of the shared segment that connect() attaches. After a failure the
/// other ranks have 200 ms to end. SIGTERM, SIGINT and SIGHUP are forwarded; a second signal other
/// than SIGHUP kills the ranks immediately. A rank that is stopped (SIGSTOP) while others have
/// ended is killed after `stopped_limit_s`; while others still run, their watchdogs detect it. The
/// ranks are killed when the calling thread ends, so it must wait here.
///
/// With a `share` the ranks are part of a job on several hosts. They get no CLEAVE_JOB_FD, and
/// print their failures themselves; stdin is read as HostShare says.
///
/// Throws Error(kUsage) if the program cannot be started, and Error(kMemory).
LaunchOutcome launch_ranks(const LaunchOptions& options);

/// launch_ranks() for a command line: prints the lines to stderr and returns the exit code.
///
/// After a failure all ranks are restarted, at most `max_restarts` times, with CLEAVE_RESTARTS=n in
/// their environment: `cleave train` then resumes from its newest complete checkpoint. Each restart
/// prints one line with its cause. Failures that would recur are not retried: exit codes 2 to 4
/// (usage, shape, format) and 9 (numerics, because runs repeat bit for bit). A requested stop is
/// not a failure.
int launch(const LaunchOptions& options);

/// Whether a failure with this exit code would recur in a restarted job.
bool would_recur(int exit_code);

}  // namespace cleave::inline comm
