#include <memory>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, PredictOptions& options) {
  flags.group("model and texts");
  flags.add(&options.model, {"model", "DIR", "model or run folder", "required"});
  flags.takes_word();
  flags.each(&options.texts,
             {"text", "TEXT", "text to classify, or with [MASK] to fill in; may be repeated"});
  flags.add(&options.text_file, {"text-file", "FILE",
                                 "one text per line; .jsonl: objects with \"text\"; .csv: a column "
                                 "text, review or sentence",
                                 "none"});
  flags.add(&options.tokenizer, tokenizer_text());
  flags.add(&options.seq_len,
            {"seq-len", "N", "maximum tokens per text", "the run's, else the model's positions"},
            kLength);
  flags.add(&options.batch_size, {"batch-size", "N", "texts per forward pass"}, kSequences);
  flags.group("output");
  flags.add(&options.top_k, {"top-k", "N", "words to print per [MASK]"},
            Range{.low = 1, .high = kTokens.high});
  flags.toggle(&options.json,
               {"json", "", "print one JSON object per text, each on one line", "off"});
  define_inference_ranks(flags, options);
}

void check(const PredictOptions& options, const Flags& flags) {
  flags.require("model");
  CLEAVE_CHECK(!options.texts.empty() || !options.text_file.empty(), Code::kUsage,
               "no text; give --text TEXT or --text-file FILE");
  if (!options.text_file.empty()) require_file("--text-file", options.text_file);
  require_model(options.model, /*takes_presets=*/false);
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
            define(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher, &flags] {
              launcher->check();
              check(*options, flags);
              if (const auto code = run_as_processes(options->device, options->tp)) return *code;
              library_function<decltype(cleave_predict)>("cleave_predict")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
