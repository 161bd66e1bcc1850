#include <algorithm>
#include <memory>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/train/options.h"

namespace cleave::cli {
namespace {

void define_input(Flags& flags, TrainOptions& options) {
  flags.group("model and data");
  flags.add(&options.model, {"model", "NAME|DIR|JSON",
                             "preset, folder of a model or of a run, or a config.json of sizes"});
  flags.many(&options.data,
             {"data", "FILES",
              "text, JSONL with \"text\", or JSONL rows of ids (\"input_ids\"); to classify: CSV "
              "with a header, or JSONL with \"label\"",
              "required"});
  flags.choice(&options.task, {"task", "", "what is learned", "the model's"},
               {"lm", "mlm", "classify"});
  flags.add(&options.tokenizer, tokenizer_text("the model's, else bytes"));
  flags.toggle(&options.shuffle, {"shuffle", "", "take the rows in the order of the files"});
  flags.add(&options.seq_len, {"seq-len", "N", "length of a sample of text, in tokens"}, kLength);
  flags.add(&options.seed, {"seed", "N", "of initial weights, dropout and the order of data"},
            kSeeds);
}

void define_steps(Flags& flags, TrainOptions& options) {
  flags.group("steps");
  flags.add(&options.steps, {"steps", "N", "optimizer steps", "1000"}, kSteps);
  flags.add(&options.epochs, {"epochs", "N", "passes over the data, instead of --steps"},
            Range{.low = 1, .high = 1e6});
  flags.exclusive({"steps", "epochs"});
  flags.add(&options.batch_size, {"batch-size", "N", "of all ranks together, in sequences"},
            kSequences);
  flags.add(&options.micro_batch_size,
            {"micro-batch-size", "N", "sequences a data-parallel rank computes at once",
             "all of its share; with --pp four parts a rank"},
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
  flags.choice(&options.optimizer, {"optimizer", "", "how weights are stepped"},
               {"adamw", "adam", "sgd"});
  flags.add(&options.lr, {"lr", "RATE", "highest learning rate"}, Range{.low = 0, .high = 1e6});
  flags.choice(&options.schedule, {"schedule", "", "of the learning rate after the warm-up"},
               {"cosine", "linear", "constant"});
  flags.add(&options.warmup,
            {"warmup", "N", "steps in which the rate rises to --lr", "10 % of all"}, kSteps);
  flags.add_flag({"adam-betas", "B1,B2", "decay of the two moments", "0.9,0.95"}, Arity::kOne,
                 [&options](const auto& from, const auto& values) {
                   read_betas(from, values.back(), options);
                 });
  flags.add(&options.adam_eps, {"adam-eps", "X", "added to the root of the second moment", "1e-8"},
            Range{.low = 1e-30, .high = 1});
  flags.add(&options.weight_decay, {"weight-decay", "X", "decay a step, as a factor of the rate"},
            Range{.low = 0, .high = 1000});
  flags.choice(&options.decay_on, {"decay-on", "", "which weights decay"}, {"matrices", "all"});
  flags.add(&options.clip, {"clip", "NORM", "limit of the gradient's global norm; 0 is off", "1.0"},
            Range{.low = 0, .high = 1e9});
  flags.choice(&options.dtype,
               {"dtype", "",
                "of weights and activations; bf16 and fp16 keep fp32 masters, fp16 scales "
                "its loss"},
               {"fp32", "bf16", "fp16", "fp64"});
}

void define_output(Flags& flags, TrainOptions& options) {
  flags.group("output");
  flags.add(&options.out, {"out", "DIR", "run folder: checkpoints, metrics, report", "required"});
  flags.add(&options.save_every,
            {"save-every", "STEPS", "steps between two checkpoints", "at the end only"}, kSteps);
  flags.add(&options.keep_last, {"keep-last", "N", "newest checkpoints to keep", "all"}, kSteps);
  flags.toggle(
      &options.async_save,
      {"save-behind", "", "go on while a checkpoint is written; takes a copy of it", "off"});
  flags.toggle(&options.resume, {"resume", "", "go on from the newest checkpoint in --out", "off"});
  flags.many(&options.eval_data, {"eval-data", "FILES", "data to measure the loss on", "none"});
  flags.add(&options.eval_every,
            {"eval-every", "STEPS", "steps between two measurements", "at the end only"}, kSteps);
}

void define_ranks(Flags& flags, TrainOptions& options) {
  flags.group("ranks");
  define_layout(flags, options);
  define_machine(flags, options);
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
  // Only the first rank asks: it may have begun to write when a later one comes here.
  if (!options.resume && is_first_rank() && !is_restart()) refuse_used_folder(options.out);
}

void check(const TrainOptions& options, const Flags& flags) {
  flags.require("data");
  flags.require("out");
  CLEAVE_CHECK(!options.async_save || options.save_every > 0, Code::kUsage,
               "--async-save needs --save-every: the last checkpoint is waited for");
  CLEAVE_CHECK(options.eval_every == 0 || !options.eval_data.empty(), Code::kUsage,
               "--eval-every needs --eval-data");
  check_sizes(options);
  check_world(options.tp, options.dp, options.pp);
  check_files(options);
}

}  // namespace

Command train_command() {
  return {.name = "train",
          .summary = "train a model, split over ranks",
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
              library_function<decltype(cleave_train)>("cleave_train")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
