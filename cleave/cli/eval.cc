#include <memory>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, EvalOptions& options) {
  flags.group("model and data");
  flags.add(&options.model, {"model", "DIR", "model or run folder", "required"});
  flags.takes_word();
  flags.many(
      &options.data,
      {"data", "FILES",
       "as for train: text, CSV, or JSONL with \"text\", \"input_ids\" or \"label\"", "required"});
  flags.add(&options.tokenizer, tokenizer_text());
  flags.add(&options.seq_len, {"seq-len", "N", "tokens per sequence", "the run's, else 256"},
            kLength);
  flags.add(&options.batch_size, {"batch-size", "N", "sequences per forward pass"}, kSequences);
  flags.toggle(&options.json,
               {"json", "", "print one JSON object: loss, and perplexity or accuracy", "off"});
  define_inference_ranks(flags, options);
}

void check(const EvalOptions& options, const Flags& flags) {
  flags.require("model");
  flags.require("data");
  require_model(options.model, /*takes_presets=*/false);
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
            define(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher, &flags] {
              launcher->check();
              check(*options, flags);
              if (const auto code = run_as_processes(options->device, options->tp)) return *code;
              library_function<decltype(cleave_eval)>("cleave_eval")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
