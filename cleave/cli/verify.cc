#include <memory>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/verify/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, VerifyOptions& options) {
  flags.group("comparison");
  flags.add(&options.model, {"model", "NAME|DIR", "preset, or model or run folder", "required"});
  flags.takes_word();
  flags.add(&options.layer, {"layer", "NAME",
                             "run only these layers and the layers in them, each by itself; * and "
                             "{a,b} as in plans",
                             "all"});
  flags.add(&options.fuzz,
            {"fuzz", "N", "instead compare N random small configurations of the model", "off"},
            Range{.low = 1, .high = 1e6});
  flags.add(&options.seed, {"seed", "N", "seed of weights, token ids and configurations"}, kSeeds);
  flags.toggle(&options.json, {"json", "", "print one JSON object", "off"});
  flags.group("ranks");
  flags.add(&options.tp,
            {"tp", "N", "tensor-parallel ranks; with --fuzz at most N",
             "2; under a launcher all remaining ranks"},
            kRanks);
  flags.add(&options.dp, {"dp", "N", "data-parallel ranks"}, kRanks);
  flags.add(&options.plan,
            {"plan", "FILE.json", "tensor-parallel plan: module names to parallel styles",
             "the model's"});
  flags.toggle(&options.sequence_parallel,
               {"sequence-parallel", "", "use the model's sequence-parallel plan", "off"});
  flags.exclusive({"plan", "sequence-parallel"});
  flags.choice(&options.dtype,
               {"dtype", "", "dtype of the sharded model; one rank is always fp64",
                "the model's, else fp32"},
               {"fp32", "bf16", "fp16", "fp64"});
  define_machine(flags, options);
}

void check(const VerifyOptions& options, const Flags& flags) {
  flags.require("model");
  require_model(options.model, /*takes_presets=*/true);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  check_world(options.tp, options.dp);
}

}  // namespace

Command verify_command() {
  return {.name = "verify",
          .summary = "compare a sharded model with one rank, layer by layer",
          .usage = "[--model] NAME|DIR [--tp N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<VerifyOptions>();
            define(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher, &flags] {
              launcher->check();
              check(*options, flags);
              const int num_ranks = (options->tp == 0 ? 2 : options->tp) * options->dp;
              const bool is_fuzz = options->fuzz > 0;  // chooses its own layouts
              if (const auto code = run_as_processes(options->device, is_fuzz ? 1 : num_ranks)) {
                return *code;
              }
              return library_function<decltype(cleave_verify)>("cleave_verify")(*options);
            };
          }};
}

}  // namespace cleave::cli
