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

/// The commands, one per file.
Command train_command();
Command generate_command();
Command eval_command();
Command predict_command();
Command verify_command();
Command plan_command();
Command launch_command();
Command tokenize_command();
Command inspect_command();
Command report_command();
Command convert_command();
Command diff_command();
Command doctor_command();
Command bench_train_command();
Command bench_generate_command();
Command bench_collectives_command();
Command lesson_command();
Command completion_command();

}  // namespace cleave::cli
