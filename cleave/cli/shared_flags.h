#pragma once
#include <optional>
#include <string>

#include "cleave/cli/flags.h"
#include "cleave/planner/options.h"

namespace cleave::cli {

/// --tp, as every command that runs a model has it.
FlagText tp_text();

/// --plain-kernels, as every command that computes has it.
/// --tokenizer; `standard` is what the help says of its default.
FlagText tokenizer_text(std::string standard = "the model's");
FlagText plain_kernels_text();

/// --tp, --dp, --pp and what else spreads a model over ranks, in the current group.
void define_layout(Flags& flags, LayoutOptions& options);

/// Where the flags about the machine go.
struct MachineFlags {
  std::string* gemm = nullptr;
  std::string* plain_kernels = nullptr;
  int* threads_per_rank = nullptr;
  double* timeout_s = nullptr;
  std::string* device = nullptr;
};

/// --gemm, --plain-kernels, --threads-per-rank, --timeout, --device, in the current group.
void define_machine(Flags& flags, const MachineFlags& machine);

/// The group "ranks" of a command that runs a model without training it: --tp, --dtype and those of
/// define_machine.
template <class Options>
void define_inference_ranks(Flags& flags, Options& options) {
  flags.group("ranks");
  flags.add(&options.tp, tp_text(), kPositive);
  flags.choice(
      &options.dtype,
      {"dtype", "", "of weights and activations; int8 keeps fp32 activations", "the file's"},
      {"fp32", "bf16", "int8", "fp64"});
  define_machine(flags, {.gemm = &options.gemm,
                         .plain_kernels = &options.plain_kernels,
                         .threads_per_rank = &options.threads_per_rank,
                         .timeout_s = &options.timeout_s,
                         .device = &options.device});
}

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
