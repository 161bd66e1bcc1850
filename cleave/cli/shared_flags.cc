#include "cleave/cli/shared_flags.h"

#include <fstream>
#include <string_view>

#include "cleave/cli/check.h"

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

}  // namespace

FlagText tp_text() {
  return {"tp", "N", "tensor-parallel ranks: each holds its part of every layer",
          "1; all ranks under a launcher"};
}

void define_layout(Flags& flags, LayoutOptions& options) {
  flags.add(&options.tp, tp_text(), kPositive);
  flags.add(&options.dp, {"dp", "N", "data-parallel ranks: each takes its share of a batch"},
            kPositive);
  flags.add(&options.pp, {"pp", "N", "pipeline ranks: each has a part of the layers"}, kPositive);
  flags.add(&options.plan,
            {"plan", "FILE.json", "how modules are split: name to style", "the model's"});
  flags.toggle(&options.sequence_parallel,
               {"sequence-parallel", "", "cut sequences over tp between split parts", "off"});
  flags.add(&options.virtual_pipeline,
            {"virtual-pipeline", "N", "pipeline stages a rank has in turn"}, kPositive);
  flags.choice(&options.schedule_pp,
               {"schedule-pp", "", "order of a pipeline's work", "1f1b, or interleaved"},
               {"gpipe", "1f1b", "interleaved", "zero-bubble"});
  flags.add(&options.zero,
            {"zero", "0|1", "1: masters and moments are cut over data-parallel ranks"},
            kNotNegative);
  flags.toggle(&options.fsdp,
               {"fsdp", "", "weights and gradients are cut over data-parallel ranks too", "off"});
  flags.choice(&options.recompute,
               {"recompute", "", "what backward computes again instead of keeping it"},
               {"none", "full", "selective"});
}

void define_machine(Flags& flags, const MachineFlags& machine) {
  flags.choice(machine.gemm, {"gemm", "", "library for matrix products; auto times both once"},
               {"auto", "mkl", "onednn"});
  flags.add(machine.threads_per_rank,
            {"threads-per-rank", "N", "threads a rank computes with", "cores / ranks"}, kPositive);
  flags.add(machine.timeout_s,
            {"timeout", "SECONDS", "longest wait for another rank before all stop"}, kAboveZero);
  flags.choice(machine.device, {"device", "", "where tensors live"}, {"cpu", "cuda"});
}

LauncherFlags::LauncherFlags(Flags& flags) {
  flags.group("other");
  flags.config();
  flags.add(&local_rank_,
            {"local-rank", "N", "from torch.distributed.launch; checked only", "none"},
            kNotNegative);
}

void LauncherFlags::check() const {
  check_launcher(local_rank_);
}

std::string command_line() {
  std::ifstream words("/proc/self/cmdline");  // each ends with NUL
  std::string line;
  for (std::string word; std::getline(words, word, '\0');) {
    line += (line.empty() ? "" : " ") + quoted(word);
  }
  return line;
}

}  // namespace cleave::cli
