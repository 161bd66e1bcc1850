#include <memory>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void check(const EvalOptions& options) {
  require_model(options.model, /*takes_presets=*/false);
  require_checkpoint(options.adapter);
  require_tokenizer(options.tokenizer);
  require_files("--data", options.data);
  check_world(options.tp, 1);
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .summary = "measure a model's mean loss and perplexity or accuracy on data",
          .usage = "[--model] DIR --data FILES [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<EvalOptions>();
            flags.add_all(option::sections(*options));
            flags.takes_word("model");
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher] {
              launcher->apply();
              check(*options);
              if (const auto code = run_as_processes(options->device, options->tp)) return *code;
              library_function<decltype(cleave_eval)>("cleave_eval")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
