#include "cleave/cli/shared_flags.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "cleave/base/log.h"
#include "cleave/cli/check.h"
#include "cleave/cli/library.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/launch/launch.h"
#include "cleave/mesh/gpus.h"

namespace cleave::cli {
namespace {

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<std::string>& noted_args() {
  static std::vector<std::string> args;
  return args;
}

}  // namespace

LauncherFlags::LauncherFlags(Flags& flags) {
  flags.group("other");
  flags.add(quiet(&is_quiet_));
  flags.config();
  flags.add({&local_rank_, "local-rank", "N",
             "set by torch.distributed.launch; Cleave only checks it", "none",
             option::Limits{0, 65535}});
}

void LauncherFlags::apply() const {
  set_quiet(is_quiet_);
  check_launcher(local_rank_);
}

option::Row quiet(bool* target) {
  return {target, "quiet", "", "print no progress and no summary", "off"};
}

std::optional<int> run_as_processes(const std::string& device, int num_ranks,
                                    std::vector<std::string> environment) {
  if (device != "cuda" || num_ranks <= 1 || read_environment()) return std::nullopt;
  // Reports missing GPUs once, not once per rank.
  library_function<decltype(cleave_require_gpus)>("cleave_require_gpus")(num_ranks);
  return launch(
      {.num_ranks = num_ranks, .command = process_args(), .environment = std::move(environment)});
}

void note_process_args(std::vector<std::string> args) {
  noted_args() = std::move(args);
}

std::vector<std::string> process_args() {
  return noted_args();
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

std::string command_line() {
  const char* launch = std::getenv(kLaunchVariable);  // NOLINT(concurrency-mt-unsafe)
  const std::string own = shell_line(process_args());
  return launch == nullptr ? own : str(launch, " ", own);
}

}  // namespace cleave::cli
