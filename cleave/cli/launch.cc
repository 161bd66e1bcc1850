#include "cleave/comm/launch/launch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <unistd.h>

#include "cleave/base/error.h"
#include "cleave/cli/command.h"
#include "cleave/cli/failed_start.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/cli/value.h"
#include "cleave/comm/launch/hosts_launch.h"

namespace cleave::cli {
namespace {

struct LaunchFlags {
  LaunchOptions ranks;
  std::string hosts;
  std::string remote_shell =
      "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
};

std::vector<std::string> hosts_of(const std::string& text) {
  std::vector<std::string> hosts;
  std::istringstream stream(text);
  for (std::string host; std::getline(stream, host, ',');) hosts.push_back(host);
  return hosts;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// This process's command line up to the program that it launches.
std::vector<std::string> own_words(const LaunchOptions& ranks) {
  std::vector<std::string> own = process_args();
  own.resize(own.size() - ranks.command.size());
  return own;
}

std::string own_line(const LaunchOptions& ranks) {
  return shell_line(own_words(ranks));
}

/// This process's variables that begin with CLEAVE_: settings of Cleave, the same on all hosts.
std::vector<std::string> cleave_variables() {
  std::vector<std::string> found;
  for (char** line = environ; *line != nullptr; ++line) {
    if (std::string_view(*line).starts_with("CLEAVE_")) found.emplace_back(*line);
  }
  return found;
}

/// The shell command that starts `num_ranks` ranks on a host, in this folder and with this program.
HostCommand host_command(const LaunchFlags& flags, int num_ranks) {
  const LaunchOptions& ranks = flags.ranks;
  std::vector<std::string> launch{std::filesystem::read_symlink("/proc/self/exe").string(),
                                  "launch",
                                  "-n",
                                  std::to_string(num_ranks),
                                  "--grace",
                                  str(ranks.grace_s),
                                  "--"};
  launch.insert(launch.end(), ranks.command.begin(), ranks.command.end());
  std::vector<std::string> set = cleave_variables();
  set.push_back(str(kLaunchVariable, '=', own_line(ranks)));
  return [launch, set, folder = std::filesystem::current_path().string()](
             const std::vector<std::string>& variables) {
    std::vector<std::string> words{"env"};
    for (const auto* more : {&set, &variables, &launch}) {
      words.insert(words.end(), more->begin(), more->end());
    }
    return str("cd ", shell_line({folder}), " && exec ", shell_line(words));
  };
}

/// The value of `flag` in a command line, written as two words or with '='.
std::optional<std::string> value_of(std::string_view flag, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == flag && i + 1 < words.size()) return words[i + 1];
    if (words[i].starts_with(str(flag, '='))) return words[i].substr(flag.size() + 1);
  }
  return std::nullopt;
}

/// The --out folder of `cleave train`, also from its --config; nullopt for other programs.
std::optional<std::string> run_folder_of(const std::vector<std::string>& command) {
  const bool is_cleave = std::filesystem::path(command.front()).filename() == "cleave";
  if (!is_cleave || command.size() < 2 || command[1] != "train") return std::nullopt;
  if (auto out = value_of("--out", command)) return out;
  const auto config = value_of("--config", command);
  if (!config) return std::nullopt;
  try {
    for (const ConfigEntry& entry : read_config_entries(*config)) {
      if (entry.name == "out") return entry.value.as_string();
    }
  } catch (const Error&) {  // the ranks report what is wrong with the file
  }
  return std::nullopt;
}

int launch_with(const LaunchFlags& flags) {
  const int num_ranks = flags.ranks.num_ranks;
  const std::vector<std::string> hosts = hosts_of(flags.hosts);
  const int num_hosts = std::max(1, static_cast<int>(hosts.size()));
  CLEAVE_CHECK(num_ranks % num_hosts == 0, Code::kUsage, "-n ", num_ranks,
               " is not a multiple of the ", num_hosts,
               " --hosts; each gets the same number of ranks");
  const int per_host = num_ranks / num_hosts;
  CLEAVE_CHECK(per_host <= option::kHostRanks.high, Code::kUsage, "-n ", num_ranks, " is ",
               per_host, " ranks on a host; expected at most ", option::kHostRanks.high);
  if (hosts.empty()) return launch(flags.ranks);
  const std::vector<std::string> remote_shell = words_of(flags.remote_shell);
  CLEAVE_CHECK(!remote_shell.empty(), Code::kUsage,
               "--remote-shell is empty; give a command, as in --remote-shell 'ssh -p 2222'");
  return launch_on_hosts({.hosts = hosts,
                          .ranks_per_host = per_host,
                          .remote_shell = remote_shell,
                          .command = host_command(flags, per_host),
                          .grace_s = flags.ranks.grace_s,
                          .max_restarts = flags.ranks.max_restarts});
}

/// Sets which ranks this process starts: all of a job, or one host's share of them.
void find_place(LaunchOptions& ranks) {
  ranks.share = read_host_share([](const char* name) { return std::getenv(name); });
  // A share already has the command line of the launcher on the first host.
  if (!ranks.share) ranks.environment.push_back(str(kLaunchVariable, "=", own_line(ranks)));
}

/// Refuses "launch -n 2 train ...", which lacks the program, with the command line that is meant.
void refuse_command(const Flags& flags, std::vector<std::string> own,
                    const std::vector<std::string>& command) {
  if (!flags.is_command(command.front())) return;
  own.push_back(own.front());
  own.insert(own.end(), command.begin(), command.end());
  throw Error(Code::kUsage, str(command.front(), " is a command of cleave, not a program; did you ",
                                "mean ", shell_line(own)));
}

}  // namespace

Command launch_command() {
  return {
      .name = "launch",
      .summary = "start the ranks of a program as processes on this host, or on several",
      .usage = "-n N [--hosts a,b] -- PROGRAM ARGS",
      .define = [](Flags& flags) -> Run {
        auto given = std::make_shared<LaunchFlags>();
        LaunchOptions& ranks = given->ranks;
        flags.add({&ranks.num_ranks, "n", "N", "ranks to start", "required", option::kRanks});
        flags.add({&given->hosts, "hosts", "NAMES",
                   "start them on these hosts over ssh, each an equal number: a,b,c", "this host"});
        flags.add({&given->remote_shell, "remote-shell", "COMMAND",
                   "runs a command on a host, as COMMAND HOST 'SHELL COMMAND'"});
        flags.add({&ranks.grace_s, "grace", "SECONDS",
                   "time to save a checkpoint after Ctrl-C, SIGTERM or SIGHUP", "",
                   option::Limits{.low = 0, .high = option::kSeconds.high}});
        flags.add({&ranks.max_restarts, "max-restarts", "N",
                   "restarts of all ranks after a failure, with --hosts on the hosts that "
                   "still answer; cleave train resumes from its newest complete checkpoint",
                   "", option::Limits{.low = 0, .high = 1e6}});
        flags.program(&ranks.command);
        return [given, &flags] {
          CLEAVE_CHECK(!given->ranks.command.empty(), Code::kUsage,
                       "no program to start; give it after --, as in cleave launch -n 2 -- "
                       "cleave train ...");
          refuse_command(flags, own_words(given->ranks), given->ranks.command);
          find_place(given->ranks);
          const auto folder = run_folder_of(given->ranks.command);
          if (!folder || given->ranks.share) return launch_with(*given);
          const FailedStart start(*folder);
          given->ranks.environment.push_back(str(kCleansUpVariable, "=1"));
          const int code = launch_with(*given);
          if (code != 0) start.clean_up();  // what ranks that were killed could not remove
          return code;
        };
      }};
}

}  // namespace cleave::cli
