#include <memory>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/planner/options.h"

namespace cleave::cli {
namespace {

void define(Flags& flags, PlanOptions& options) {
  flags.add_all(option::sections(options));
  flags.takes_word("model");
  flags.exclusive({"parameters", "json"});
  // These flags describe one layout; --ranks lists many.
  for (const option::Row& row : option::rows(static_cast<LayoutOptions&>(options))) {
    flags.exclusive({"ranks", row.name});
  }
  flags.exclusive({"ranks", "parameters"});
  flags.exclusive({"ranks", "draw-schedule"});
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
