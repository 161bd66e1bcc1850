#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/failed_start.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/file/model_path.h"
#include "cleave/file/weighted_path.h"
#include "cleave/report/record.h"
#include "cleave/train/options.h"

namespace cleave::cli {
namespace {

void check_schedule(const TrainOptions& options) {
  CLEAVE_CHECK(options.min_lr <= options.lr, Code::kUsage, "--min-lr is ", options.min_lr,
               "; expected at most --lr, ", options.lr);
  CLEAVE_CHECK(options.min_lr == 0 || options.schedule != "constant", Code::kUsage,
               "--min-lr needs a --schedule that falls: cosine, linear or wsd");
  CLEAVE_CHECK(!options.decay_steps || options.schedule == "wsd", Code::kUsage,
               "--decay-steps needs --schedule wsd");
}

/// Refuses an --out that holds another run or other files. Only rank 0 checks: it may have started
/// to write when another rank gets here. A restart takes what its job has written.
void check_folder(const TrainOptions& options) {
  if (!is_first_rank()) return;
  const RefusedStart refused(options.out, command_line());
  if (is_restart() && !refused.is_of_this_job()) return;
  try {
    options.resume ? refuse_foreign_folder(options.out) : refuse_used_folder(options.out);
  } catch (const Error&) {
    refused.note();
    throw;
  }
  refused.forget();
}

/// Whether the run resumes with weights of its own, so that the folder of --model, which its first
/// start needed, may be gone. A run of adapters still needs its base model.
bool has_own_weights(const TrainOptions& options) {
  if (!options.resume && !is_restart()) return false;
  try {
    const std::filesystem::path checkpoint = resolve_run_folder(options.out);
    std::error_code problem;
    return checkpoint != options.out &&
           !std::filesystem::exists(checkpoint / "adapter_config.json", problem);
  } catch (const Error&) {
    return false;  // the library says what is wrong with the run
  }
}

void check_files(const TrainOptions& options) {
  if (!has_own_weights(options)) require_model("--model", options.model, /*takes_presets=*/true);
  require_tokenizer(options.tokenizer);
  require_chat_template(options.chat_template);
  for (const WeightedPath& file : weighted_paths(options.data)) require_file("--data", file.path);
  require_files("--eval-data", options.eval_data);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  require_run_folder(options.out);
  check_folder(options);
}

void check(const TrainOptions& options) {
  CLEAVE_CHECK(
      !options.async_save || options.save_every > 0, Code::kUsage,
      "--async-save needs --save-every: the last checkpoint is never saved asynchronously");
  CLEAVE_CHECK(options.eval_every == 0 || !options.eval_data.empty(), Code::kUsage,
               "--eval-every needs --eval-data");
  CLEAVE_CHECK(options.eval_data.empty() || options.steps != 0, Code::kUsage,
               "--eval-data is evaluated after steps, and --steps is 0; omit it, and measure the "
               "model with cleave eval");
  CLEAVE_CHECK(options.early_stop == 0 || options.eval_every > 0, Code::kUsage,
               "--early-stop needs --eval-every: it counts evaluations");
  check_schedule(options);
  check_batch(options.batch_size, options.micro_batch_size, options.dp);
  // A restarted run fits its layout to the ranks that are left.
  if (!is_restart()) check_world(options.tp, {{"--pp", options.pp}, {"--dp", options.dp}});
  check_files(options);
}

/// The command that resumes the run in --out, for a command line with --resume that lacks flags;
/// empty if there is none.
std::string resume_command(const TrainOptions& options) {
  std::error_code problem;
  const bool is_run =
      std::filesystem::exists(std::filesystem::path(options.out) / kRecordName, problem);
  if (!options.resume || !is_run) return "";
  for (const auto& [name, value] : read_record(options.out).settings) {
    if (name != kCommandSetting) continue;
    const bool resumes = value.find(" --resume") != std::string::npos;
    return str("a resumed run takes its flags again: ", value, resumes ? "" : " --resume");
  }
  return "";
}

}  // namespace

Command train_command() {
  return {.name = "train",
          .summary = "train a model on parallel ranks",
          .usage = "[[--model] NAME|DIR|JSON] --data FILES --out DIR [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<TrainOptions>();
            flags.add_all(option::sections(*options));
            flags.takes_word("model");
            flags.exclusive({"steps", "epochs"});
            flags.when_missing([options] { return resume_command(*options); });
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher] {
              launcher->apply();
              check(*options);
              const int num_ranks = std::max(options->tp, 1) * options->pp * options->dp;
              const FailedStart start(options->out);
              if (const auto code = run_as_processes(options->device, num_ranks,
                                                     {str(kCleansUpVariable, "=1")})) {
                if (*code != 0) start.clean_up();
                return *code;
              }
              options->command = command_line();
              try {
                library_function<decltype(cleave_train)>("cleave_train")(*options);
              } catch (...) {
                // What other ranks still use, the launcher removes when all have ended.
                if (!launcher_cleans_up()) start.clean_up();
                throw;
              }
              return 0;
            };
          }};
}

}  // namespace cleave::cli
