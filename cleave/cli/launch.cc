#include "cleave/comm/launch/launch.h"

#include <memory>

#include "cleave/base/error.h"
#include "cleave/cli/command.h"
#include "cleave/cli/shared_flags.h"

namespace cleave::cli {
namespace {

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
  return {.name = "launch",
          .summary = "start the ranks of a program as processes on this host",
          .usage = "-n N -- PROGRAM ARGS",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<LaunchOptions>();
            flags.add(
                {&options->num_ranks, "n", "N", "ranks to start", "required", option::kHostRanks});
            flags.add({&options->grace_s, "grace", "SECONDS",
                       "time to save a checkpoint after Ctrl-C or SIGTERM", "",
                       option::Limits{.low = 0, .high = option::kSeconds.high}});
            flags.add({&options->max_restarts, "max-restarts", "N",
                       "restarts of all ranks after a failure; cleave train resumes from its "
                       "newest complete checkpoint",
                       "", option::Limits{.low = 0, .high = 1e6}});
            flags.program(&options->command);
            return [options, &flags] {
              CLEAVE_CHECK(!options->command.empty(), Code::kUsage,
                           "no program to start; give it after --, as in cleave launch -n 2 -- "
                           "cleave train ...");
              std::vector<std::string> own = process_args();
              own.resize(own.size() - options->command.size());
              refuse_command(flags, own, options->command);
              options->environment.push_back(str(kLaunchVariable, "=", shell_line(own)));
              return launch(*options);
            };
          }};
}

}  // namespace cleave::cli
