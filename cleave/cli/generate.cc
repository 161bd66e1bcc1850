#include <memory>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/prompts.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

namespace cleave::cli {
namespace {

void define_prompts(Flags& flags, GenerateOptions& options, std::string* prompt_file) {
  flags.group("model and prompts");
  flags.add(&options.model, {"model", "DIR", "folder of a model or of a run", "required"});
  flags.each(&options.prompts, {"prompt", "TEXT", "text to go on from; may be given again"});
  flags.add(prompt_file, {"prompt-file", "FILE",
                          "a prompt a line; .jsonl: objects with \"prompt\", \"text\" or "
                          "\"input_ids\""});
  flags.add_flag(
      {"prompt-ids", "1,2,3", "ids to go on from, no tokenizer needed; may be given again"},
      Arity::kRows, [&options](const auto& from, const auto& values) {
        for (const std::string& value : values) {
          options.prompt_ids.push_back(read_ids({from, value}));
        }
      });
  flags.exclusive({"prompt", "prompt-file", "prompt-ids"});
  flags.add(&options.tokenizer, tokenizer_text());
}

void define_search(Flags& flags, GenerateOptions& options) {
  flags.group("what comes out");
  flags.add(&options.max_new_tokens, {"max-new-tokens", "N", "longest continuation, in tokens"},
            kLength);
  flags.add(&options.num_beams, {"num-beams", "N", "beams searched; 1 is greedy"},
            Range{.low = 1, .high = 1024});
  flags.add(&options.num_return_sequences,
            {"num-return-sequences", "N", "continuations of each prompt"},
            Range{.low = 1, .high = 1024});
  flags.add(&options.length_penalty,
            {"length-penalty", "X", "above 0 beams favour long texts, below 0 short ones", "1.0"},
            Range{.low = -100, .high = 100});
  flags.choice(&options.early_stopping,
               {"early-stopping", "",
                "when a beam search ends: at num-beams ends, by a guess, "
                "or when nothing can improve"},
               {"true", "false", "never"});
  flags.add(&options.no_repeat_ngram_size,
            {"no-repeat-ngram-size", "N", "no run of N tokens comes twice; 0 is off"}, kTokens);
  flags.add(&options.repetition_penalty,
            {"repetition-penalty", "X", "above 1 tokens that came before become rarer", "1.0"},
            Range{.low = 0.001, .high = 1000});
  flags.add(&options.eos_id, {"eos-id", "ID", "token that ends a text", "the model's"}, kTokens);
  flags.each(&options.stop, {"stop", "TEXT", "text that ends a continuation; may be given again"});
}

void define_sampling(Flags& flags, GenerateOptions& options) {
  flags.group("sampling");
  flags.toggle(&options.do_sample, {"do-sample", "", "draw tokens by their probability", "off"});
  flags.add(&options.temperature, {"temperature", "X", "below 1 likely tokens gain", "1.0"},
            Range{.low = 1e-6, .high = 1e6});
  flags.add(&options.top_k, {"top-k", "N", "only the N likeliest tokens; 0 is off"}, kTokens);
  flags.add(&options.top_p,
            {"top-p", "P", "only the likeliest tokens that reach P together", "1.0"},
            Range{.low = 0, .high = 1, .takes_low = false});
  flags.add(&options.seed, {"seed", "N", "of the draws"}, kSeeds);
}

void define_output(Flags& flags, GenerateOptions& options) {
  flags.group("output");
  flags.toggle(&options.json, {"json", "", "one JSON object a prompt, each on one line", "off"});
  flags.toggle(&options.stream,
               {"stream", "", "print texts when they are whole, not as they come"});
}

void check(const GenerateOptions& options, const Flags& flags) {
  flags.require("model");
  CLEAVE_CHECK(!options.prompts.empty() || !options.prompt_ids.empty(), Code::kUsage,
               "no prompt; give --prompt TEXT, --prompt-file FILE or --prompt-ids 1,2,3");
  CLEAVE_CHECK(options.do_sample || options.num_return_sequences <= options.num_beams, Code::kUsage,
               "--num-return-sequences is ", options.num_return_sequences,
               ", more than --num-beams ", options.num_beams,
               "; raise --num-beams or give --do-sample");
  for (const char* name : {"temperature", "top-k", "top-p"}) {
    if (flags.is_given(name) && !options.do_sample) {
      log_warning("--", name, " has no effect without --do-sample");
    }
  }
  require_model(options.model, /*takes_presets=*/false);
  require_tokenizer(options.tokenizer);
  check_world(options.tp, 1);
}

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .summary = "continue texts with a trained model",
          .usage = "--model DIR --prompt TEXT [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<GenerateOptions>();
            auto prompt_file = std::make_shared<std::string>();
            define_prompts(flags, *options, prompt_file.get());
            define_search(flags, *options);
            define_sampling(flags, *options);
            define_output(flags, *options);
            define_inference_ranks(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, prompt_file, launcher, &flags] {
              launcher->check();
              if (!prompt_file->empty()) read_prompt_file(*prompt_file, options.get());
              check(*options, flags);
              if (const auto code = run_as_processes(options->device, options->tp)) return *code;
              library_function<decltype(cleave_generate)>("cleave_generate")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
