#include <memory>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void check(const PredictOptions& options) {
  CLEAVE_CHECK(!options.texts.empty() || !options.text_file.empty(), Code::kUsage,
               "no text; give --text TEXT or --text-file FILE");
  if (!options.text_file.empty()) require_file("--text-file", options.text_file);
  require_model(options.model, /*takes_presets=*/false);
  require_checkpoint(options.adapter);
  require_tokenizer(options.tokenizer);
  check_world(options.tp, 1);
}

}  // namespace

Command predict_command() {
  return {.name = "predict",
          .summary = "classify texts, or fill in [MASK]",
          .usage = "[--model] DIR --text TEXT [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<PredictOptions>();
            flags.add_all(option::sections(*options));
            flags.takes_word("model");
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher] {
              launcher->apply();
              check(*options);
              if (const auto code = run_as_processes(options->device, options->tp)) return *code;
              library_function<decltype(cleave_predict)>("cleave_predict")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
