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
  for (const char* other : {"ranks", "model", "tokens", "parameters", "draw-schedule"}) {
    flags.exclusive({"runs", other});
  }
}

/// --cluster, --tokens and --runs.
void check_cluster(const PlanOptions& o) {
  if (!o.runs.empty()) require_file("--runs", o.runs);
  if (o.cluster.ends_with(".json")) require_file("--cluster", o.cluster);
  const bool searches = !o.cluster.empty() && o.runs.empty();
  CLEAVE_CHECK(!searches || o.ranks > 0, Code::kUsage, "--cluster ", o.cluster,
               " needs the number of devices; add --ranks N");
  CLEAVE_CHECK(searches || o.tokens.empty(), Code::kUsage,
               "--tokens needs a cluster; add --cluster NAME");
  constexpr int kMostRanks = static_cast<int>(option::kRanks.high);
  CLEAVE_CHECK(searches || o.ranks <= kMostRanks, Code::kUsage, "--ranks is ", o.ranks,
               "; at most ", kMostRanks, " without --cluster");
}

void check(const PlanOptions& options) {
  check_cluster(options);
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
          .usage =
              "[--model] NAME|DIR|JSON [--tp N ... | --ranks N [--cluster NAME] | --runs FILE.csv] "
              "[flags]",
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
