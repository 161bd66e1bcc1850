#pragma once
#include <optional>
#include <string>

#include "cleave/cli/flags.h"
#include "cleave/generate/options.h"
#include "cleave/planner/options.h"

namespace cleave::cli {

/// --tokenizer; `standard` is what the help says of its default.
FlagText tokenizer_text(std::string standard = "the model's");

/// --plain-kernels, as every command that computes has it.
FlagText plain_kernels_text();

/// --tp, --dp, --pp and what else spreads a model over ranks, in the current group.
void define_layout(Flags& flags, LayoutOptions& options);

/// --gemm, --plain-kernels, --threads-per-rank, --timeout, --device, in the current group.
void define_machine(Flags& flags, MachineOptions& options);

/// The group "ranks" of a command that runs a model without training it: --tp, --dtype and those of
/// define_machine.
void define_inference_ranks(Flags& flags, RunOptions& options);

/// What config files and launchers add: --config and --local-rank (also --local_rank, as
/// torch.distributed.launch writes it).
class LauncherFlags {
 public:
  explicit LauncherFlags(Flags& flags);
  LauncherFlags(const LauncherFlags&) = delete;
  LauncherFlags& operator=(const LauncherFlags&) = delete;

  /// Compares with what the launcher said in the environment. Throws Error(kShape).
  void check() const;

 private:
  int local_rank_ = -1;
};

/// Ranks on GPUs are processes: runs this command line again as `num_ranks` of them and returns its
/// exit code. Nothing where this process runs the ranks, or is one of a launcher's.
std::optional<int> run_as_processes(const std::string& device, int num_ranks);

/// The command line of this process, its program first.
std::vector<std::string> own_words();

/// The command line of this process as one could type it.
std::string command_line();

}  // namespace cleave::cli
