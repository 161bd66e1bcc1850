#pragma once
#include <string>
#include <vector>

#include "cleave/cli/command.h"

namespace cleave::cli {

/// What `cleave --help` prints, ends with a line break.
std::string program_help(const std::vector<Command>& commands);

/// What `cleave COMMAND --help` prints.
std::string command_help(const Command& command, const Flags& flags);

}  // namespace cleave::cli
