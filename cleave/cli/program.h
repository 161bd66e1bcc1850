#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cleave/cli/command.h"

namespace cleave::cli {

/// The commands of the program, in the order of its help.
std::vector<Command> all_commands();

/// Runs the command that `words`, the arguments after the program's name, select. Returns the exit
/// code; prints a failure as one line on stderr.
int run_program(const std::vector<std::string>& words, const std::vector<Command>& commands);

/// Text of `cleave --help`; ends with a newline.
std::string program_help(const std::vector<Command>& commands);

/// Text of `cleave COMMAND --help`.
std::string command_help(const Command& command, const Flags& flags);

/// Follows the message of an unexpected exception; see report_failure of comm/launch/failure.h.
inline constexpr std::string_view kBugAdvice =
    "; this is a bug in cleave; please report it with the command line";

/// Exit code of `cleave diff` when it finds differences.
inline constexpr int kDifferent = 1;

/// One row of the table of exit codes.
struct ExitCode {
  int code;
  std::string name;
  std::string meaning;
};

/// All exit codes of the program below 128; 128 + n means ended by signal n.
std::vector<ExitCode> exit_codes();

}  // namespace cleave::cli
