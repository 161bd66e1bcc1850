#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cleave/cli/flags.h"

namespace cleave::cli {

/// Does the work of a command once its flags are read; returns the exit code.
using Run = std::function<int()>;

/// One subcommand of the program.
struct Command {
  std::string name;     ///< a word, or two: "bench collectives" is one of the commands of bench
  std::string summary;  ///< one phrase
  std::string usage;    ///< what follows "cleave NAME"
  std::function<Run(Flags&)> define;
};

/// The commands, one a file.
Command train_command();
Command generate_command();
Command eval_command();
Command predict_command();
Command verify_command();
Command plan_command();
Command launch_command();
Command tokenize_command();
Command inspect_command();
Command convert_command();
Command diff_command();
Command doctor_command();
Command bench_train_command();
Command bench_generate_command();
Command bench_collectives_command();
Command completion_command();

}  // namespace cleave::cli
