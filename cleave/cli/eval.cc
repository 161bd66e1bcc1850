#include "cleave/cli/inference.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void check(const EvalOptions& options) {
  check_inference(options);
  require_files("--data", options.data);
  if (!options.reference.empty()) {
    require_model("--reference", options.reference, /*takes_presets=*/false);
  }
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .summary = "measure a model's loss and perplexity, accuracy, errors or rewards on data",
          .usage = "[--model] DIR --data FILES [flags]",
          .define = [](Flags& flags) -> Run {
            return define_inference<decltype(cleave_eval), EvalOptions>(flags, "cleave_eval",
                                                                        &check);
          }};
}

}  // namespace cleave::cli
