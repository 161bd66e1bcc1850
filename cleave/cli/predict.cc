#include "cleave/base/error.h"
#include "cleave/cli/inference.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void check(const PredictOptions& options) {
  CLEAVE_CHECK(!options.texts.empty() || !options.text_file.empty(), Code::kUsage,
               "no text; give --text TEXT or --text-file FILE");
  if (!options.text_file.empty()) require_file("--text-file", options.text_file);
  check_inference(options);
}

}  // namespace

Command predict_command() {
  return {.name = "predict",
          .summary = "classify texts, or fill in [MASK]",
          .usage = "[--model] DIR --text TEXT [flags]",
          .define = [](Flags& flags) -> Run {
            return define_inference<decltype(cleave_predict), PredictOptions>(
                flags, "cleave_predict", &check);
          }};
}

}  // namespace cleave::cli
