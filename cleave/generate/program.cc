#include <algorithm>
#include <ctime>

#include <ATen/Parallel.h>

#include "cleave/base/log.h"
#include "cleave/file/model_path.h"
#include "cleave/generate/chat.h"
#include "cleave/generate/generate.h"
#include "cleave/generate/printer.h"
#include "cleave/generate/record_step.h"
#include "cleave/generate/runnable.h"
#include "cleave/generate/search.h"
#include "cleave/generate/stop_texts.h"
#include "cleave/mesh/consistency.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/fingerprint.h"

namespace cleave::inline generation {
namespace {

/// With fewer weights per rank, several threads are slower than one.
constexpr int64_t kMinWeightsForThreads = int64_t{1} << 22;

EarlyStopping early_stopping_of(const std::string& flag) {
  if (flag == "true") return EarlyStopping::kTrue;
  if (flag == "never") return EarlyStopping::kNever;
  CLEAVE_CHECK(flag == "false", Code::kUsage, "--early-stopping ", flag,
               " is unknown; choose true, false or never");
  return EarlyStopping::kFalse;
}

std::vector<Ids> prompts_of(const GenerateOptions& options, const Tokenizer* tokenizer) {
  std::vector<Ids> out = options.prompt_ids;
  for (const std::string& text : options.prompts) {
    out.push_back(tokenizer->encode(text));
    CLEAVE_CHECK(!out.back().empty(), Code::kUsage,
                 "an empty prompt has no tokens with this tokenizer, which adds no begin token; "
                 "give some text, or ids with --prompt-ids");
  }
  return out;
}

GenerateSettings settings_of(const GenerateOptions& o, const Runnable& runnable,
                             const std::shared_ptr<const Tokenizer>& tokenizer) {
  const int64_t vocab_size = runnable.facts().vocab_size;
  CLEAVE_CHECK(o.eos_id.value_or(0) < vocab_size, Code::kShape, "--eos-id ", o.eos_id.value_or(0),
               " is outside the vocabulary; the model's ids are 0 to ", vocab_size - 1);
  const GenerationConfig& own = runnable.generation();
  const GenerateSettings defaults;
  const auto chosen = [](const auto& given, const auto& of_model, auto otherwise) {
    return given.value_or(of_model.value_or(otherwise));
  };
  GenerateSettings settings{
      .max_new_tokens = o.max_new_tokens,
      .num_beams = o.num_beams,
      .num_return_sequences = o.num_return_sequences,
      .length_penalty = chosen(o.length_penalty, own.length_penalty, defaults.length_penalty),
      .early_stopping = early_stopping_of(
          o.early_stopping.empty() ? own.early_stopping.value_or("false") : o.early_stopping),
      .no_repeat_ngram_size =
          chosen(o.no_repeat_ngram_size, own.no_repeat_ngram_size, defaults.no_repeat_ngram_size),
      .repetition_penalty =
          chosen(o.repetition_penalty, own.repetition_penalty, defaults.repetition_penalty),
      .do_sample = o.do_sample,
      .temperature = chosen(o.temperature, own.temperature, defaults.temperature),
      .top_k = chosen(o.top_k, own.top_k, defaults.top_k),
      .top_p = chosen(o.top_p, own.top_p, defaults.top_p),
      .seed = o.seed,
      .max_sequences = o.batch_size,
      .eos_ids = o.eos_id ? Ids{*o.eos_id} : runnable.eos_ids()};
  if (!o.stop.empty()) {
    const auto stops = std::make_shared<StopTexts>(o.stop, tokenizer);
    settings.ends_text = [stops](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
      return stops->is_in(prompt, ids);
    };
  }
  return settings;
}

/// Names the model's settings of generation that have no effect, but would have in transformers.
void warn_of_unused(const GenerationConfig& config, const GenerateSettings& settings) {
  std::vector<std::string> keys = config.unused;
  const auto add = [&](const std::vector<std::string>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  if (settings.do_sample) add(config.unused_in_sampling);
  if (settings.num_beams > 1) add(config.unused_in_beam_search);
  if (keys.empty()) return;
  std::string names = keys.front();
  for (size_t i = 1; i < keys.size(); ++i)
    names += (i + 1 < keys.size() ? ", " : " and ") + keys[i];
  log_warning("the model's ", config.file, " sets ", names,
              ", which generate does not use; transformers may give other ids");
}

/// The input of a run, shared by all ranks of a process.
struct Program {
  const GenerateOptions& options;
  Runnable runnable;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Ids> prompts;
  GenerateSettings settings;
};

void choose_threads(Model& model, int threads_per_rank) {
  int64_t num_weights = 0;
  for (const auto& p : model.parameters()) num_weights += c10::multiply_integers(p->local_shape());
  if (threads_per_rank == 0 && num_weights < kMinWeightsForThreads) at::set_num_threads(1);
}

/// Counts prompts whose continuation was truncated at the model's last position.
class TruncatedPrompts {
 public:
  explicit TruncatedPrompts(const Program& program) : program_(program) {}

  void note(size_t prompt, const std::vector<Sequence>& sequences) {
    const Ids& ends = program_.settings.eos_ids;
    const int64_t capacity =
        most_new_ids(program_.prompts[prompt], program_.runnable.facts().max_positions);
    const bool is_truncated =
        capacity < program_.settings.max_new_tokens &&
        std::any_of(sequences.begin(), sequences.end(), [&](const Sequence& s) {
          return static_cast<int64_t>(s.ids.size()) == capacity &&
                 std::find(ends.begin(), ends.end(), s.ids.back()) == ends.end();
        });
    if (is_truncated && ++count_ == 1) first_ = prompt;
  }

  /// Warns in one line about all of them.
  void warn() const {
    if (count_ == 0) return;
    const Ids& prompt = program_.prompts[first_];
    const int64_t positions = program_.runnable.facts().max_positions;
    const size_t num_prompts = program_.prompts.size();
    const bool is_single = num_prompts == 1;
    log_warning(is_single ? "the text ends" : str(count_, " of ", num_prompts, " texts end"),
                " before --max-new-tokens ", program_.settings.max_new_tokens, ": the model has ",
                positions, " positions, so after the ", prompt.size(), " tokens of ",
                is_single ? "the prompt" : str("prompt ", first_ + 1), " at most ",
                most_new_ids(prompt, positions), " new tokens fit");
  }

 private:
  const Program& program_;
  size_t count_ = 0, first_ = 0;
};

ConfigFingerprint fingerprint_of(const GenerateOptions& options, const Runnable& runnable,
                                 const Tokenizer* tokenizer, const GenerateSettings& s,
                                 const std::vector<Ids>& prompts) {
  ConfigFingerprint fingerprint = runnable.fingerprint(options);
  fingerprint.emplace_back("--tokenizer with checksum", checksum_of(tokenizer));
  fingerprint.emplace_back("end ids with checksum", checksum_of({s.eos_ids}));
  fingerprint.emplace_back(
      "settings of generation_config.json",
      str(s.repetition_penalty, ' ', s.no_repeat_ngram_size, ' ', s.temperature, ' ', s.top_k, ' ',
          s.top_p, ' ', s.length_penalty, ' ', static_cast<int>(s.early_stopping)));
  fingerprint.emplace_back("prompts with checksum", checksum_of(prompts));
  return fingerprint;
}

/// Runs the prompts. Only rank 0 prints.
void run_rank(const Program& program, const RunAxes& axes) {
  const GenerateOptions& o = program.options;
  RecordStep record(o, axes);
  const auto model = program.runnable.load(axes.tp, axes.ep);
  choose_threads(*model, o.threads_per_rank);
  const auto num_prompts = static_cast<int64_t>(program.prompts.size());
  Printer printer(o, num_prompts * o.num_return_sequences, program.tokenizer);
  TruncatedPrompts truncated(program);
  OnToken on_token;
  OnPrompt on_prompt;
  if (axes.is_first()) {
    warn_of_unused(program.runnable.generation(), program.settings);
    if (printer.is_streaming()) {
      printer.begin(program.prompts.front());
      on_token = [&](int64_t, int64_t, int64_t id) { printer.next(id); };
    }
    on_prompt = [&](int64_t prompt, const Generation& so_far) {
      const auto p = static_cast<size_t>(prompt);
      printer.finish(program.prompts[p], so_far, prompt);
      truncated.note(p, so_far.prompts[p]);
    };
  }
  const GenerateSettings settings = record.watch(*model, program.settings);
  generate(*model, axes.tp, program.prompts, settings, on_token, on_prompt);
  truncated.warn();
  record.finish();
}

/// The ids of each message as the first one of a conversation.
std::vector<Ids> ids_of_messages(const std::vector<std::string>& messages,
                                 const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::vector<Ids> out;
  for (const std::string& text : messages) {
    const std::string prompt = chat_template.render({chat_message("user", text)}, true);
    out.push_back(tokenizer.encode(prompt, {.add_special = false}));
  }
  return out;
}

/// A time whose local form is the local time of rank 0, on all ranks.
std::time_t local_time_of_first(const Axis& all) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  Tensor shown = at::scalar_tensor(static_cast<int64_t>(timegm(&local)), at::kLong).view({1});
  all.broadcast_(shown, 0, "time for the chat template");
  const std::time_t first = shown.item<int64_t>();
  gmtime_r(&first, &local);
  local.tm_isdst = -1;
  return std::mktime(&local);
}

/// Answers the prompts, or without any the messages from stdin.
void answer_messages(const GenerateOptions& options) {
  const Runnable runnable(options, {"lm"});
  const auto tokenizer = runnable.tokenizer(options.tokenizer, /*is_needed=*/true);
  const std::string folder = runnable.tokenizer_folder(options.tokenizer);
  const auto template_at = [&](std::time_t now) {
    return load_model_chat_template("", folder, *tokenizer, now);
  };
  CLEAVE_CHECK(template_at(0), Code::kUsage, folder.empty() ? runnable.folder().path : folder,
               " has no chat template, which --chat needs; train the model on chats with "
               "--chat-template chatml, or put a chat_template.jinja into the folder");
  const GenerateSettings settings = settings_of(options, runnable, tokenizer);
  run_on_ranks(
      options, [&] { return fingerprint_of(options, runnable, tokenizer.get(), settings, {}); },
      [&](const RunAxes& axes) {
        const bool reads_stdin = options.prompts.empty();
        CLEAVE_CHECK(axes.all.size() == 1 || !reads_stdin, Code::kUsage,
                     "--chat reads messages on one rank, not on ", axes.all.size(),
                     "; give them as --prompt or --prompt-file");
        const auto chat_template = template_at(local_time_of_first(axes.all));
        const auto messages = ids_of_messages(options.prompts, *chat_template, *tokenizer);
        check_consistent({{"messages with checksum", checksum_of(messages)}}, axes.all);
        const auto model = runnable.load(axes.tp, axes.ep);
        choose_threads(*model, options.threads_per_rank);
        if (axes.is_first()) warn_of_unused(runnable.generation(), settings);
        const ChatModel chat{*model, axes.tp, tokenizer, chat_template, settings, axes.is_first()};
        if (reads_stdin) {
          run_chat(chat);
        } else {
          answer_each(chat, options.prompts);
        }
      });
}

void generate_and_print(const GenerateOptions& options) {
  if (options.chat) return answer_messages(options);
  Runnable runnable(options, {"lm"});
  // A tokenizer is only needed for texts.
  const auto tokenizer = runnable.tokenizer(options.tokenizer, !options.prompts.empty());
  const GenerateSettings settings = settings_of(options, runnable, tokenizer);
  const Program program{.options = options,
                        .runnable = std::move(runnable),
                        .tokenizer = tokenizer,
                        .prompts = prompts_of(options, tokenizer.get()),
                        .settings = settings};
  // Before the weights are read and a prompt is printed.
  for (size_t p = 0; p < program.prompts.size(); ++p) {
    const auto number = static_cast<int64_t>(p) + 1;
    (void)check_prompt(program.prompts[p], number, program.runnable.facts());
  }
  run_on_ranks(
      options,
      [&] {
        return fingerprint_of(options, program.runnable, program.tokenizer.get(), program.settings,
                              program.prompts);
      },
      [&](const RunAxes& axes) { run_rank(program, axes); });
}

}  // namespace
}  // namespace cleave::inline generation

void cleave_generate(const cleave::GenerateOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  check_recording(options);
  read_from(folders_of({options.model, options.adapter, options.tokenizer}),
            [&] { generate_and_print(options); });
}
