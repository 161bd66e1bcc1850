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
  flags.group("what is trained");
  flags.add(&options.model,
            {"model", "NAME|DIR|JSON", "preset, model folder, or a config.json of sizes"});
  flags.add(&options.vocab_size, {"vocab-size", "N", "of a preset"},
            Range{.low = 1, .high = kTokens.high});
  flags.add(&options.batch_size, {"batch-size", "N", "of all ranks together, in sequences"},
            kSequences);
  flags.add(&options.micro_batch_size,
            {"micro-batch-size", "N", "sequences a data-parallel rank computes at once",
             "as in training"},
            kSequences);
  flags.add(&options.seq_len, {"seq-len", "N", "tokens of a sequence"}, kLength);
  flags.choice(&options.dtype, {"dtype", "", "of forward and backward"},
               {"fp32", "bf16", "fp16", "fp64"});
  flags.choice(&options.optimizer, {"optimizer", "", "whose moments are kept"},
               {"adamw", "adam", "sgd"});
  flags.group("layout");
  flags.add(&options.ranks,
            {"ranks", "N", "list the layouts of N ranks, best first, instead of one", "off"},
            kRanks);
  flags.add(&options.memory,
            {"memory", "SIZE", "what a rank may take, as 8GiB", "this machine's memory / ranks"});
  define_layout(flags, options);
  flags.group("output");
  flags.toggle(&options.parameters, {"parameters", "", "list how every parameter is cut", "off"});
  flags.add(&options.draw_schedule,
            {"draw-schedule", "FILE.svg", "draw the pipeline's schedule", "none"});
  flags.toggle(&options.json, {"json", "", "one line of JSON", "off"});
  flags.exclusive({"parameters", "json"});
  // What belongs to one layout says nothing of many.
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
          .summary = "memory, messages and time of a layout before it is run",
          .usage = "--model NAME|DIR|JSON [--tp N ... | --ranks N] [flags]",
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
