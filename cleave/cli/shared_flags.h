#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/cli/flags.h"

namespace cleave::cli {

/// --config, --quiet and --local-rank (also --local_rank, which torch.distributed.launch passes).
class LauncherFlags {
 public:
  explicit LauncherFlags(Flags& flags);
  LauncherFlags(const LauncherFlags&) = delete;
  LauncherFlags& operator=(const LauncherFlags&) = delete;

  /// Applies --quiet. Compares --local-rank with the launcher's environment variables. Throws
  /// Error(kShape).
  void apply() const;

 private:
  int local_rank_ = -1;
  bool is_quiet_ = false;
};

/// --quiet.
option::Row quiet(bool* target);

/// Several ranks on GPUs must be processes: runs this command line as `num_ranks` processes and
/// returns the exit code. Returns nullopt if this process itself runs the ranks or is a rank of a
/// launcher. `environment`: NAME=value for the processes.
std::optional<int> run_as_processes(const std::string& device, int num_ranks,
                                    std::vector<std::string> environment = {});

/// Notes argv of this process. /proc, which has it too, may be missing.
void note_process_args(std::vector<std::string> args);

/// argv of this process, as noted.
std::vector<std::string> process_args();

/// Words as one line, quoted for a shell.
std::string shell_line(const std::vector<std::string>& words);

/// The environment variable that holds the command line of `cleave launch` up to the program, for
/// its ranks: "cleave launch -n 2 --".
inline constexpr const char* kLaunchVariable = "CLEAVE_LAUNCH";

/// The command line of this process as it was typed, with that of `cleave launch` if it started
/// this process; quoted for a shell.
std::string command_line();

}  // namespace cleave::cli
