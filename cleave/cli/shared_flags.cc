#include "cleave/cli/shared_flags.h"

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/cli/check.h"
#include "cleave/cli/library.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/launch/launch.h"
#include "cleave/mesh/gpus.h"

namespace cleave::cli {
namespace {

std::string quoted(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

FlagText tp_text() {
  return {"tp", "N", "tensor-parallel ranks; each holds a shard of every layer",
          "1; under a launcher all remaining ranks"};
}

}  // namespace

FlagText tokenizer_text(std::string default_text) {
  return {"tokenizer", "bytes|DIR", "one token per byte, or a folder with tokenizer files",
          std::move(default_text)};
}

FlagText plain_kernels_text() {
  return {"plain-kernels", "LIST",
          "use libtorch for these kernels: attention,norm,gate,rotary,loss,few-rows,panels,adam, "
          "or all",
          "none"};
}

void define_layout(Flags& flags, LayoutOptions& options) {
  flags.add(&options.tp, tp_text(), kRanks);
  flags.add(&options.dp, {"dp", "N", "data-parallel ranks; each computes a share of the batch"},
            kRanks);
  flags.add(&options.pp, {"pp", "N", "pipeline-parallel ranks; each holds some of the layers"},
            kRanks);
  flags.add(&options.plan,
            {"plan", "FILE.json", "tensor-parallel plan: module names to parallel styles",
             "the model's"});
  flags.toggle(&options.sequence_parallel,
               {"sequence-parallel", "",
                "shard activations along the sequence between tensor-parallel regions", "off"});
  flags.add(&options.virtual_pipeline,
            {"virtual-pipeline", "N", "pipeline stages per pipeline rank"}, kRanks);
  flags.choice(&options.schedule_pp,
               {"schedule-pp", "", "pipeline schedule", "1f1b, or interleaved"},
               {"gpipe", "1f1b", "interleaved", "zero-bubble"});
  flags.add(
      &options.zero,
      {"zero", "0|1", "1 shards master weights and optimizer moments over data-parallel ranks"},
      Range{.low = 0, .high = 1});
  flags.toggle(&options.fsdp,
               {"fsdp", "", "also shard weights and gradients over data-parallel ranks", "off"});
  flags.choice(&options.recompute,
               {"recompute", "", "activations that backward recomputes instead of keeping them"},
               {"none", "full", "selective"});
}

void define_machine(Flags& flags, MachineOptions& options) {
  flags.choice(&options.gemm, {"gemm", "", "library for matrix products; auto times both once"},
               {"auto", "mkl", "onednn"});
  flags.add(&options.plain_kernels, plain_kernels_text());
  flags.add(&options.threads_per_rank,
            {"threads-per-rank", "N", "compute threads of a rank", "cores / ranks"}, kThreads);
  flags.add(&options.timeout_s,
            {"timeout", "SECONDS", "longest wait for another rank; then all ranks stop"}, kSeconds);
  flags.choice(&options.device, {"device", "", "device of all tensors"}, {"cpu", "cuda"});
}

void define_inference_ranks(Flags& flags, RunOptions& options) {
  flags.group("ranks");
  flags.add(&options.tp, tp_text(), kRanks);
  flags.choice(
      &options.dtype,
      {"dtype", "", "dtype of weights and activations; int8 has fp32 activations", "the file's"},
      {"fp32", "bf16", "int8", "fp64"});
  define_machine(flags, options);
}

LauncherFlags::LauncherFlags(Flags& flags) {
  flags.group("other");
  flags.config();
  flags.add(&local_rank_,
            {"local-rank", "N", "set by torch.distributed.launch; only checked", "none"},
            Range{.low = 0, .high = 65535});
}

void LauncherFlags::check() const {
  check_launcher(local_rank_);
}

std::optional<int> run_as_processes(const std::string& device, int num_ranks) {
  if (device != "cuda" || num_ranks <= 1 || read_environment()) return std::nullopt;
  // Reports missing GPUs once, not once per rank.
  library_function<decltype(cleave_require_gpus)>("cleave_require_gpus")(num_ranks);
  return launch({.num_ranks = num_ranks, .command = process_args(), .environment = {}});
}

std::vector<std::string> process_args() {
  std::ifstream file("/proc/self/cmdline");  // each word ends with NUL
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

std::string command_line() {
  const char* launch = std::getenv(kLaunchVariable);  // NOLINT(concurrency-mt-unsafe)
  const std::string own = shell_line(process_args());
  return launch == nullptr ? own : str(launch, " ", own);
}

}  // namespace cleave::cli
