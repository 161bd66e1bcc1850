#pragma once
#include <string>
#include <vector>

#include "cleave/cli/command.h"

namespace cleave::cli {

/// Runs what the words after the program's name ask for. Returns the exit code; failures have been
/// printed as one line on stderr.
int run_program(const std::vector<std::string>& words, const std::vector<Command>& commands);

}  // namespace cleave::cli
