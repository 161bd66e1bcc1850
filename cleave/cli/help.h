#pragma once
#include <string>
#include <vector>

#include "cleave/cli/command.h"

namespace cleave::cli {

/// Text of `cleave --help`; ends with a newline.
std::string program_help(const std::vector<Command>& commands);

/// Text of `cleave COMMAND --help`.
std::string command_help(const Command& command, const Flags& flags);

}  // namespace cleave::cli
