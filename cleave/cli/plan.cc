#include <memory>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/planner/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, PlanOptions& options) {
  flags.group("model and batch");
  flags.add(&options.model,
            {"model", "NAME|DIR|JSON", "preset, model folder, or a config.json with sizes"});
  flags.takes_word();
  flags.add(&options.vocab_size, {"vocab-size", "N", "vocabulary size of a preset"},
            Range{.low = 1, .high = kTokens.high});
  flags.add(&options.batch_size, {"batch-size", "N", "sequences per step over all ranks"},
            kSequences);
  flags.add(&options.micro_batch_size,
            {"micro-batch-size", "N", "sequences per forward pass of a data-parallel rank",
             "as in train"},
            kSequences);
  flags.add(&options.seq_len, {"seq-len", "N", "tokens per sequence"}, kLength);
  flags.choice(&options.dtype, {"dtype", "", "dtype of forward and backward"},
               {"fp32", "bf16", "fp16", "fp64"});
  flags.choice(&options.optimizer, {"optimizer", "", "optimizer"}, {"adamw", "adam", "sgd"});
  flags.group("layout");
  flags.add(&options.ranks,
            {"ranks", "N", "instead list all layouts of N ranks, best first", "off"}, kRanks);
  flags.add(&options.memory,
            {"memory", "SIZE", "memory limit per rank, e.g. 8GiB", "this host's memory / ranks"});
  define_layout(flags, options);
  flags.group("output");
  flags.toggle(&options.parameters,
               {"parameters", "", "list how every parameter is sharded", "off"});
  flags.add(&options.draw_schedule,
            {"draw-schedule", "FILE.svg", "draw the pipeline schedule", "none"});
  flags.toggle(&options.json, {"json", "", "print one line of JSON", "off"});
  flags.exclusive({"parameters", "json"});
  // These flags describe one layout; --ranks lists many.
  for (const char* of_one :
       {"tp", "pp", "dp", "plan", "sequence-parallel", "virtual-pipeline", "schedule-pp", "zero",
        "fsdp", "recompute", "parameters", "draw-schedule"}) {
    flags.exclusive({"ranks", of_one});
  }
}

void check(const PlanOptions& options) {
  require_model(options.model, /*takes_presets=*/true);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  CLEAVE_CHECK(options.batch_size >= options.dp, Code::kShape, "--batch-size is ",
               options.batch_size, ", fewer than the ", options.dp,
               " data-parallel ranks; give each at least one sequence");
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .summary = "forecast memory, communication and time of a layout",
          .usage = "[--model] NAME|DIR|JSON [--tp N ... | --ranks N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<PlanOptions>();
            define(flags, *options);
            flags.group("other");
            flags.config();
            return [options] {
              check(*options);
              library_function<decltype(cleave_plan)>("cleave_plan")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
