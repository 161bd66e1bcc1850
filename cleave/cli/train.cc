#include <algorithm>
#include <memory>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/failed_start.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/train/options.h"

namespace cleave::cli {
namespace {

void define_input(Flags& flags, TrainOptions& options) {
  flags.group("model and data");
  flags.add(&options.model,
            {"model", "NAME|DIR|JSON", "preset, model or run folder, or a config.json with sizes"});
  flags.many(&options.data,
             {"data", "FILES",
              "text, or JSONL with \"text\" or \"input_ids\"; for classification CSV with a "
              "header, or JSONL with \"label\"",
              "required"});
  flags.choice(&options.task, {"task", "", "training task", "the model's"},
               {"lm", "mlm", "classify"});
  flags.add(&options.tokenizer, tokenizer_text("the model's, else bytes"));
  flags.toggle(&options.shuffle, {"shuffle", "", "read the data in file order"});
  flags.add(&options.seq_len, {"seq-len", "N", "tokens per sequence"}, kLength);
  flags.add(&options.seed, {"seed", "N", "seed of initial weights, dropout and data order"},
            kSeeds);
}

void define_steps(Flags& flags, TrainOptions& options) {
  flags.group("steps");
  flags.add(&options.steps, {"steps", "N", "optimizer steps", "1000"}, kSteps);
  flags.add(&options.epochs, {"epochs", "N", "passes over the data, instead of --steps"},
            Range{.low = 1, .high = 1e6});
  flags.exclusive({"steps", "epochs"});
  flags.add(&options.batch_size, {"batch-size", "N", "sequences per step over all ranks"},
            kSequences);
  flags.add(&options.micro_batch_size,
            {"micro-batch-size", "N", "sequences per forward pass of a data-parallel rank",
             "its whole share; with --pp share / (4 x pp)"},
            kSequences);
}

void read_betas(const std::string& from, const std::string& text, TrainOptions& options) {
  const auto betas = read_numbers({from, text}, Range{.low = 0, .high = 1, .takes_high = false});
  CLEAVE_CHECK(betas.size() == 2, Code::kUsage, from, " is '", text,
               "'; expected two numbers, as in 0.9,0.95");
  options.beta1 = betas[0];
  options.beta2 = betas[1];
}

void define_optimizer(Flags& flags, TrainOptions& options) {
  flags.group("optimizer");
  flags.choice(&options.optimizer, {"optimizer", "", "optimizer"}, {"adamw", "adam", "sgd"});
  flags.add(&options.lr, {"lr", "RATE", "peak learning rate"}, Range{.low = 0, .high = 1e6});
  flags.choice(&options.schedule, {"schedule", "", "learning rate schedule after warm-up"},
               {"cosine", "linear", "constant"});
  flags.add(&options.warmup,
            {"warmup", "N", "steps in which the learning rate rises to --lr", "10 % of all"},
            kSteps);
  flags.add_flag({"adam-betas", "B1,B2", "decay rates of Adam's moments", "0.9,0.95"}, Arity::kOne,
                 [&options](const auto& from, const auto& values) {
                   read_betas(from, values.back(), options);
                 });
  flags.add(&options.adam_eps, {"adam-eps", "X", "Adam's epsilon", "1e-8"},
            Range{.low = 1e-30, .high = 1});
  flags.add(&options.weight_decay,
            {"weight-decay", "X", "weight decay, multiplied by the learning rate"},
            Range{.low = 0, .high = 1000});
  flags.choice(&options.decay_on, {"decay-on", "", "parameters with weight decay"},
               {"matrices", "all"});
  flags.add(&options.clip, {"clip", "NORM", "maximum global gradient norm; 0 is off", "1.0"},
            Range{.low = 0, .high = 1e9});
  flags.choice(&options.dtype,
               {"dtype", "",
                "dtype of weights and activations; bf16 and fp16 keep fp32 master weights, fp16 "
                "scales the loss"},
               {"fp32", "bf16", "fp16", "fp64"});
}

void define_output(Flags& flags, TrainOptions& options) {
  flags.group("output");
  flags.add(&options.out, {"out", "DIR", "run folder: checkpoints, metrics, report", "required"});
  flags.add(&options.save_every,
            {"save-every", "STEPS", "steps between checkpoints", "at the end only"}, kSteps);
  flags.add(&options.keep_last, {"keep-last", "N", "newest checkpoints to keep", "all"}, kSteps);
  flags.toggle(
      &options.async_save,
      {"async-save", "",
       "continue training while a checkpoint is written; needs memory for its copy", "off"});
  flags.toggle(
      &options.resume,
      {"resume", "",
       "resume from the newest checkpoint in --out; without one, start from the beginning", "off"});
  flags.many(&options.eval_data, {"eval-data", "FILES", "evaluation data", "none"});
  flags.add(&options.eval_every,
            {"eval-every", "STEPS", "steps between evaluations", "at the end only"}, kSteps);
}

void define_ranks(Flags& flags, TrainOptions& options) {
  flags.group("ranks");
  define_layout(flags, options);
  define_machine(flags, options);
  flags.toggle(
      &options.over_commit,
      {"over-commit", "", "start even if the forecast exceeds the available memory", "off"});
}

void check_sizes(const TrainOptions& options) {
  CLEAVE_CHECK(options.batch_size >= options.dp, Code::kShape, "--batch-size is ",
               options.batch_size, ", fewer than the ", options.dp,
               " data-parallel ranks; give each at least one sequence");
  const int64_t share = (options.batch_size + options.dp - 1) / options.dp;
  CLEAVE_CHECK(options.micro_batch_size <= share, Code::kShape, "--micro-batch-size is ",
               options.micro_batch_size, ", more than the ", share,
               " sequences of a data-parallel rank (--batch-size ", options.batch_size, ", --dp ",
               options.dp, ')');
}

void check_files(const TrainOptions& options) {
  require_model(options.model, /*takes_presets=*/true);
  require_tokenizer(options.tokenizer);
  require_files("--data", options.data);
  require_files("--eval-data", options.eval_data);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  // Only rank 0 checks: it may have started to write when another rank gets here.
  if (!options.resume && is_first_rank() && !is_restart()) refuse_used_folder(options.out);
}

void check(const TrainOptions& options, const Flags& flags) {
  flags.require("data");
  flags.require("out");
  CLEAVE_CHECK(
      !options.async_save || options.save_every > 0, Code::kUsage,
      "--async-save needs --save-every: the last checkpoint is never saved asynchronously");
  CLEAVE_CHECK(options.eval_every == 0 || !options.eval_data.empty(), Code::kUsage,
               "--eval-every needs --eval-data");
  check_sizes(options);
  check_world(options.tp, options.dp, options.pp);
  check_files(options);
}

}  // namespace

Command train_command() {
  return {.name = "train",
          .summary = "train a model on parallel ranks",
          .usage = "--data FILES --out DIR [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<TrainOptions>();
            define_input(flags, *options);
            define_steps(flags, *options);
            define_optimizer(flags, *options);
            define_output(flags, *options);
            define_ranks(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher, &flags] {
              launcher->check();
              check(*options, flags);
              const int num_ranks = std::max(options->tp, 1) * options->pp * options->dp;
              if (const auto code = run_as_processes(options->device, num_ranks)) return *code;
              options->command = command_line();
              const FailedStart start(options->out);
              try {
                library_function<decltype(cleave_train)>("cleave_train")(*options);
              } catch (...) {
                start.clean_up();
                throw;
              }
              return 0;
            };
          }};
}

}  // namespace cleave::cli
