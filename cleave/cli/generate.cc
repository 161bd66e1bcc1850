#include <string_view>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/cli/inference.h"
#include "cleave/cli/prompts.h"
#include "cleave/generate/options.h"
#include "cleave/generate/settings.h"

namespace cleave::cli {
namespace {

constexpr int64_t kChatTokens = 512;  // of an answer

void check_chat(const GenerateOptions& options) {
  CLEAVE_CHECK(options.num_beams == 1 && options.num_return_sequences == 1, Code::kUsage,
               "--chat streams one answer; omit --num-beams and "
               "--num-return-sequences");
  CLEAVE_CHECK(!options.json, Code::kUsage, "--chat prints text; omit --json");
  CLEAVE_CHECK(options.prompt_ids.empty(), Code::kUsage, "--chat answers texts; ",
               options.prompt_file, " has token ids");
  const bool is_split = options.tp > 1 || options.ep > 1;
  CLEAVE_CHECK(!is_split || !options.prompts.empty(), Code::kUsage,
               "--chat reads messages on one rank; omit ",
               options.tp > 1 ? str("--tp ", options.tp) : str("--ep ", options.ep),
               ", or give the messages as --prompt or --prompt-file");
}

void check(const GenerateOptions& options) {
  CLEAVE_CHECK(options.chat || !options.prompts.empty() || !options.prompt_ids.empty(),
               Code::kUsage,
               "no prompt; give --prompt TEXT, --prompt-file FILE (- is stdin), --prompt-ids 1,2,3 "
               "or --chat");
  if (options.chat) check_chat(options);
  CLEAVE_CHECK(options.do_sample || options.num_return_sequences <= options.num_beams, Code::kUsage,
               "--num-return-sequences is ", options.num_return_sequences,
               ", more than --num-beams ", options.num_beams,
               "; raise --num-beams, or give --do-sample with a --temperature above 0");
  check_inference(options);
}

/// Temperature 0 is greedy decoding, also with --do-sample. Refuses temperatures close to 0, and
/// warns of flags without effect.
void settle_sampling(GenerateOptions& options, const Flags& flags) {
  const bool is_greedy = options.temperature == 0.0;
  CLEAVE_CHECK(is_greedy || options.temperature.value_or(1) >= kLeastTemperature, Code::kUsage,
               "--temperature ", *options.temperature,
               " must be 0 (the likeliest token) or at least ", kLeastTemperature);
  if (is_greedy) {
    options.do_sample = false;
    options.temperature = 1;
  }
  for (const char* name : {"temperature", "top-k", "top-p"}) {
    if (!flags.is_given(name) || options.do_sample) continue;
    if (is_greedy && std::string_view(name) == "temperature") continue;
    log_warning("--", name, " has no effect ",
                is_greedy ? "at --temperature 0" : "without --do-sample");
  }
}

void prepare(GenerateOptions& options, const Flags& flags) {
  if (!options.prompt_file.empty()) read_prompt_file(&options);
  if (options.chat && !flags.is_given("max-new-tokens")) options.max_new_tokens = kChatTokens;
  settle_sampling(options, flags);
  check(options);
}

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .summary = "generate text with a trained model",
          .usage = "[--model] DIR --prompt TEXT | --prompt-file FILE | --chat [flags]",
          .define = [](Flags& flags) -> Run {
            Run run = define_inference<decltype(cleave_generate), GenerateOptions>(
                flags, "cleave_generate",
                [&flags](GenerateOptions& options) { prepare(options, flags); });
            flags.exclusive({"prompt", "prompt-file", "prompt-ids"});
            flags.exclusive({"prompt-ids", "chat"});
            return run;
          }};
}

}  // namespace cleave::cli
