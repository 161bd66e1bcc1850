#include <memory>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/verify/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, VerifyOptions& options) {
  flags.group("what is compared");
  flags.add(&options.model,
            {"model", "NAME|DIR", "preset, or folder of a model or of a run", "required"});
  flags.add(&options.layer, {"layer", "NAME",
                             "run only these Layers by themselves, and all below; * and {a,b} as "
                             "in plans",
                             "all"});
  flags.add(&options.fuzz,
            {"fuzz", "N", "N random small configurations around the model's instead", "off"},
            Range{.low = 1, .high = 1e6});
  flags.add(&options.seed, {"seed", "N", "of weights, ids and configurations"}, kSeeds);
  flags.toggle(&options.json, {"json", "", "one JSON object", "off"});
  flags.group("ranks");
  flags.add(&options.tp,
            {"tp", "N", "tensor-parallel ranks; with --fuzz the most of them",
             "2; all ranks under a launcher"},
            kRanks);
  flags.add(&options.dp, {"dp", "N", "data-parallel ranks"}, kRanks);
  flags.add(&options.plan,
            {"plan", "FILE.json", "how modules are split: name to style", "the model's"});
  flags.toggle(&options.sequence_parallel,
               {"sequence-parallel", "", "the model's plan that also cuts tokens", "off"});
  flags.exclusive({"plan", "sequence-parallel"});
  flags.choice(
      &options.dtype,
      {"dtype", "", "of the split model; one rank is always fp64", "the model's, else fp32"},
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
          .summary = "compare a split model with one rank, Layer by Layer",
          .usage = "--model NAME|DIR [--tp N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<VerifyOptions>();
            define(flags, *options);
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher, &flags] {
              launcher->check();
              check(*options, flags);
              const int num_ranks = (options->tp == 0 ? 2 : options->tp) * options->dp;
              const bool is_fuzz = options->fuzz > 0;  // has layouts of its own
              if (const auto code = run_as_processes(options->device, is_fuzz ? 1 : num_ranks)) {
                return *code;
              }
              return library_function<decltype(cleave_verify)>("cleave_verify")(*options);
            };
          }};
}

}  // namespace cleave::cli
