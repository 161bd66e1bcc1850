#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cleave/cli/flags.h"

namespace cleave::cli {

/// Runs a command after its flags are read; returns the exit code.
using Run = std::function<int()>;

/// One subcommand of the program.
struct Command {
  std::string name;     ///< "train", or of a subcommand "bench train"
  std::string summary;  ///< one phrase
  std::string usage;    ///< arguments, shown after "cleave NAME"
  std::function<Run(Flags&)> define;
};

}  // namespace cleave::cli
