#include "cleave/cli/program.h"

namespace cleave::cli {

// One per file.
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

std::vector<Command> all_commands() {
  return {train_command(),          generate_command(),
          eval_command(),           predict_command(),
          verify_command(),         plan_command(),
          launch_command(),         tokenize_command(),
          inspect_command(),        report_command(),
          convert_command(),        diff_command(),
          doctor_command(),         bench_train_command(),
          bench_generate_command(), bench_collectives_command(),
          lesson_command(),         completion_command()};
}

}  // namespace cleave::cli
