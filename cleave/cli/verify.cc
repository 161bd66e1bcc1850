#include <memory>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/verify/options.h"

namespace cleave::cli {
namespace {

void check(const VerifyOptions& options) {
  require_model("--model", options.model, /*takes_presets=*/true);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  check_world(options.tp, {{"--dp", options.dp}});
}

}  // namespace

Command verify_command() {
  return {.name = "verify",
          .summary = "compare a sharded model with one rank, layer by layer",
          .usage = "[--model] NAME|DIR|JSON [--tp N] [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<VerifyOptions>();
            flags.add_all(option::sections(*options));
            flags.takes_word("model");
            flags.exclusive({"plan", "sequence-parallel"});
            auto launcher = std::make_shared<LauncherFlags>(flags);
            return [options, launcher] {
              launcher->apply();
              check(*options);
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
