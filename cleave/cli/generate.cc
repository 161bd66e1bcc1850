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
  flags.add(&options.model, {"model", "DIR", "model or run folder", "required"});
  flags.takes_word();
  flags.each(&options.prompts, {"prompt", "TEXT", "text to continue; may be repeated"});
  flags.add(prompt_file, {"prompt-file", "FILE",
                          "one prompt per line; .jsonl: objects with \"prompt\", \"text\" or "
                          "\"input_ids\""});
  flags.add_flag(
      {"prompt-ids", "1,2,3", "token ids to continue, without a tokenizer; may be repeated"},
      Arity::kRows, [&options](const auto& from, const auto& values) {
        for (const std::string& value : values) {
          options.prompt_ids.push_back(read_ids({from, value}));
        }
      });
  flags.exclusive({"prompt", "prompt-file", "prompt-ids"});
  flags.add(&options.tokenizer, tokenizer_text());
}

void define_search(Flags& flags, GenerateOptions& options) {
  flags.group("decoding");
  flags.add(&options.max_new_tokens, {"max-new-tokens", "N", "maximum number of new tokens"},
            kLength);
  flags.add(&options.num_beams, {"num-beams", "N", "beams of beam search; 1 is greedy search"},
            Range{.low = 1, .high = 1024});
  flags.add(&options.num_return_sequences,
            {"num-return-sequences", "N", "continuations per prompt"},
            Range{.low = 1, .high = 1024});
  flags.add(
      &options.length_penalty,
      {"length-penalty", "X", "above 0 beam search favors long texts, below 0 short ones", "1.0"},
      Range{.low = -100, .high = 100});
  flags.choice(&options.early_stopping,
               {"early-stopping", "",
                "beam search stops with num-beams finished texts (true), when a better one is "
                "unlikely (false) or impossible (never)"},
               {"true", "false", "never"});
  flags.add(&options.no_repeat_ngram_size,
            {"no-repeat-ngram-size", "N", "no N-gram of tokens occurs twice; 0 is off"}, kTokens);
  flags.add(
      &options.repetition_penalty,
      {"repetition-penalty", "X", "above 1 makes tokens of the text so far less likely", "1.0"},
      Range{.low = 0.001, .high = 1000});
  flags.add(&options.eos_id, {"eos-id", "ID", "id of the end-of-text token", "the model's"},
            kTokens);
  flags.each(&options.stop, {"stop", "TEXT", "text that ends a continuation; may be repeated"});
}

void define_sampling(Flags& flags, GenerateOptions& options) {
  flags.group("sampling");
  flags.toggle(&options.do_sample, {"do-sample", "", "sample tokens by their probability", "off"});
  flags.add(&options.temperature,
            {"temperature", "X", "divides the logits; below 1 favors likely tokens", "1.0"},
            Range{.low = 1e-6, .high = 1e6});
  flags.add(&options.top_k, {"top-k", "N", "sample from the N likeliest tokens; 0 is off"},
            kTokens);
  flags.add(&options.top_p,
            {"top-p", "P", "sample from the likeliest tokens with total probability P", "1.0"},
            Range{.low = 0, .high = 1, .takes_low = false});
  flags.add(&options.seed, {"seed", "N", "seed of sampling"}, kSeeds);
}

void define_output(Flags& flags, GenerateOptions& options) {
  flags.group("output");
  flags.toggle(&options.json,
               {"json", "", "print one JSON object per prompt, each on one line", "off"});
  flags.toggle(&options.stream,
               {"stream", "", "print each text when it is complete, not token by token"});
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
          .summary = "generate text with a trained model",
          .usage = "[--model] DIR --prompt TEXT [flags]",
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
