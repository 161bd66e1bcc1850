#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/shm/shared_segment.h"

namespace cleave {

struct LaunchOptions {
  int num_ranks = 1;                     ///< 1 to 256
  std::vector<std::string> command;      ///< program and arguments, the same for every rank
  double grace_s = 20;                   ///< between a forwarded SIGTERM or SIGINT and SIGKILL
  double stopped_limit_s = 30;           ///< for a rank that is stopped when others have ended
  int max_restarts = 0;                  ///< times that launch() starts all ranks again
  std::vector<std::string> environment;  ///< NAME=value, over the launcher's own
};

/// How a launch ended.
struct LaunchOutcome {
  int exit_code = 0;               ///< of the root cause; 128 + n for a signal
  std::vector<int> exit_codes;     ///< by rank
  std::optional<Abort> cause;      ///< the first failure that a rank recorded, or that was seen
  std::vector<std::string> lines;  ///< what a user should read about it, at most 4
};

/// Starts the ranks of one host as direct children and waits for all of them.
///
/// Each has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
/// CLEAVE_JOB_FD, the descriptor of the shared segment that connect() attaches. When one fails the others
/// are told and have 200 ms to end. SIGTERM, SIGINT and SIGHUP are forwarded; a second one kills at
/// once. A rank that is stopped (SIGSTOP) while the others end is killed at `stopped_limit_s`: as
/// long as they work, they notice. When the launcher is killed, so are the ranks: the calling
/// thread must wait here.
///
/// Throws Error(kUsage) when the program cannot be started, Error(kMemory).
LaunchOutcome launch_ranks(const LaunchOptions& options);

/// launch_ranks() for a command line: prints the lines to stderr and returns the exit code.
///
/// After a failure all ranks are started again, `max_restarts` times at most, with
/// CLEAVE_RESTARTS=n in their environment, by which `cleave train` goes on from its newest whole
/// checkpoint. One line tells each restart and its cause. What must fail again at once does not
/// restart: exit codes 2 to 4 (usage, shape, format) and 9 (numerics, for a run repeats bit for
/// bit). Nor does a stop that was asked for.
int launch(const LaunchOptions& options);

}  // namespace cleave
