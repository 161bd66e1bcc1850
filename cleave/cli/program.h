#pragma once
#include <string>
#include <vector>

#include "cleave/cli/command.h"

namespace cleave::cli {

/// Runs the command that `words`, the arguments after the program's name, select. Returns the exit
/// code; prints a failure as one line on stderr.
int run_program(const std::vector<std::string>& words, const std::vector<Command>& commands);

}  // namespace cleave::cli
