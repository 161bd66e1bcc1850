#pragma once
#include <optional>
#include <string>

#include "cleave/cli/flags.h"
#include "cleave/generate/options.h"
#include "cleave/planner/options.h"

namespace cleave::cli {

/// --tokenizer; `default_text` is its default in help.
FlagText tokenizer_text(std::string default_text = "the model's");

/// --plain-kernels.
FlagText plain_kernels_text();

/// Adds --tp, --dp, --pp and the other layout flags to the current group.
void define_layout(Flags& flags, LayoutOptions& options);

/// Adds --gemm, --plain-kernels, --threads-per-rank, --timeout, --device to the current group.
void define_machine(Flags& flags, MachineOptions& options);

/// Adds the group "ranks" of a command that runs a model without training it: --tp, --dtype and the
/// flags of define_machine.
void define_inference_ranks(Flags& flags, RunOptions& options);

/// --config and --local-rank (also --local_rank, which torch.distributed.launch passes).
class LauncherFlags {
 public:
  explicit LauncherFlags(Flags& flags);
  LauncherFlags(const LauncherFlags&) = delete;
  LauncherFlags& operator=(const LauncherFlags&) = delete;

  /// Compares --local-rank with the launcher's environment variables. Throws Error(kShape).
  void check() const;

 private:
  int local_rank_ = -1;
};

/// Several ranks on GPUs must be processes: runs this command line as `num_ranks` processes and
/// returns the exit code. Returns nullopt if this process itself runs the ranks or is a rank of a
/// launcher.
std::optional<int> run_as_processes(const std::string& device, int num_ranks);

/// argv of this process.
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
