#include <algorithm>

#include <ATen/Parallel.h>

#include "cleave/comm/flight_file.h"
#include "cleave/generate/generate.h"
#include "cleave/generate/options.h"
#include "cleave/generate/printer.h"
#include "cleave/generate/runnable.h"
#include "cleave/generate/stop_texts.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"

namespace cleave {
namespace {

constexpr int64_t kMostRows = 64;  // sequences at once; more prompts go in several batches

/// Weights of a rank below which a team of threads costs a token more than it saves.
constexpr int64_t kWorthATeam = int64_t{1} << 22;

EarlyStopping early_stopping_of(const std::string& flag) {
  if (flag == "true") return EarlyStopping::kTrue;
  if (flag == "never") return EarlyStopping::kNever;
  CLEAVE_CHECK(flag == "false", Code::kUsage, "--early-stopping ", flag,
               " is unknown; choose true, false or never");
  return EarlyStopping::kFalse;
}

/// Ids need no tokenizer: where the folder has none, none is used. Texts do.
std::shared_ptr<const Tokenizer> tokenizer_of(const GenerateOptions& options,
                                              const Runnable& runnable) {
  const std::string& folder = runnable.folder().path;
  if (options.prompts.empty() && !has_tokenizer(folder)) return nullptr;
  return load_tokenizer(folder);
}

std::vector<Ids> prompts_of(const GenerateOptions& options, const Tokenizer* tokenizer) {
  std::vector<Ids> out = options.prompt_ids;
  for (const std::string& text : options.prompts) {
    out.push_back(tokenizer->encode(text));
    CLEAVE_CHECK(!out.back().empty(), Code::kUsage,
                 "an empty prompt gives no id with this tokenizer, which puts no begin token; give "
                 "some text, or ids with --prompt-ids");
  }
  return out;
}

GenerateSettings settings_of(const GenerateOptions& o, const Runnable& runnable,
                             const std::shared_ptr<const Tokenizer>& tokenizer) {
  GenerateSettings settings{.max_new_tokens = o.max_new_tokens,
                            .num_beams = o.num_beams,
                            .num_return_sequences = o.num_return_sequences,
                            .length_penalty = o.length_penalty,
                            .early_stopping = early_stopping_of(o.early_stopping),
                            .no_repeat_ngram_size = o.no_repeat_ngram_size,
                            .repetition_penalty = o.repetition_penalty,
                            .do_sample = o.do_sample,
                            .temperature = o.temperature,
                            .top_k = o.top_k,
                            .top_p = o.top_p,
                            .seed = o.seed,
                            .eos_ids = o.eos_id ? Ids{*o.eos_id} : runnable.eos_ids()};
  if (!o.stop.empty()) {
    const auto stops = std::make_shared<StopTexts>(o.stop, tokenizer);
    settings.ends_text = [stops](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
      return stops->is_in(prompt, ids);
    };
  }
  return settings;
}

/// A run of the program, the same on all ranks.
struct Program {
  const GenerateOptions& options;
  Runnable runnable;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Ids> prompts;
  GenerateSettings settings;
};

void choose_threads(Model& model, int threads_per_rank) {
  int64_t num_weights = 0;
  for (const auto& parameter : model.parameters()) num_weights += parameter->leaf().numel();
  if (threads_per_rank == 0 && num_weights < kWorthATeam) at::set_num_threads(1);
}

/// Batch by batch; the first rank alone prints.
void run_rank(const Program& program, const Axis& tp) {
  const GenerateOptions& o = program.options;
  choose_gemm(o.gemm, tp);
  const auto model = program.runnable.load(tp);
  choose_threads(*model, o.threads_per_rank);
  const int64_t rows_each = o.num_beams > 1 ? o.num_beams : o.num_return_sequences;
  const auto num_prompts = static_cast<int64_t>(program.prompts.size());
  Printer printer(o, num_prompts * o.num_return_sequences, program.tokenizer);
  const bool prints = tp.rank() == 0;
  OnToken on_token;
  if (prints && printer.is_streaming()) {
    printer.begin(program.prompts.front());
    on_token = [&](int64_t, int64_t, int64_t id) { printer.next(id); };
  }
  const int64_t at_once = std::max<int64_t>(1, kMostRows / rows_each);
  for (int64_t first = 0; first < num_prompts; first += at_once) {
    const auto begin = program.prompts.begin() + first;
    const std::vector<Ids> batch(begin, begin + std::min(at_once, num_prompts - first));
    GenerateSettings settings = program.settings;
    settings.first_prompt = first;
    const Generation generation = generate(*model, tp, batch, settings, on_token);
    if (prints) printer.finish(batch, generation, first);
  }
}

}  // namespace
}  // namespace cleave

void cleave_generate(const cleave::GenerateOptions& options) {
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  Runnable runnable(options.model, options.dtype, options.device);
  const auto tokenizer = tokenizer_of(options, runnable);
  const GenerateSettings settings = settings_of(options, runnable, tokenizer);
  const Program program{.options = options,
                        .runnable = std::move(runnable),
                        .tokenizer = tokenizer,
                        .prompts = prompts_of(options, tokenizer.get()),
                        .settings = settings};
  const int num_ranks = num_ranks_of(options.tp);
  run_job({.num_ranks = num_ranks,
           .threads_per_rank = options.threads_per_rank,
           .ranks = {.timeout_s = options.timeout_s, .flight_log_folder = temporary_flight_logs()},
           .device = options.device},
          [&](World& world) {
            run_rank(program, Mesh::build(world, {{"tp", num_ranks}})["tp"]);
          });
}
