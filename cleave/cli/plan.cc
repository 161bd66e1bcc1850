#include <algorithm>
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
  // These flags describe one layout, but --ranks lists many. In a dry run both may be given:
  // --ranks is then the product of the sizes. On a cluster, they restrict the list.
  for (const option::Row& row : option::rows(static_cast<LayoutOptions&>(options))) {
    flags.exclusive({"ranks", row.name}, {"dry-run", "cluster"});
  }
  flags.exclusive({"ranks", "parameters"}, {"dry-run"});
  flags.exclusive({"ranks", "draw-schedule"});
  for (const char* other : {"plan", "schedule-pp"}) flags.exclusive({"cluster", other});
  for (const char* other : {"cluster", "memory", "draw-schedule"}) {
    flags.exclusive({"dry-run", other});
  }
  for (const option::Row& row : option::rows(static_cast<LoraFlags&>(options))) {
    flags.exclusive({"cluster", row.name});
  }
  // The rows of a table of runs contain all of these settings.
  for (const option::Section& section : option::sections(options)) {
    for (const option::Row& row : section.rows) {
      const bool is_of_runs = row.name == "runs" || row.name == "cluster" || row.name == "json";
      if (!is_of_runs) flags.exclusive({"runs", row.name});
    }
  }
}

/// Fills in what a dry run need not be given: dp is what tp and pp leave of --ranks; at least one
/// sequence is there for each data-parallel rank.
void complete_dry_run(PlanOptions& o, const Flags& flags) {
  CLEAVE_CHECK(o.dry_run || !flags.is_given("rank"), Code::kUsage,
               "--rank chooses the rank of a dry run; add --dry-run");
  if (!o.dry_run) return;
  o.tp = std::max(o.tp, 1);
  const int64_t inner = int64_t{o.tp} * o.pp;
  if (o.ranks == 0) {
    const int64_t all = inner * o.dp;
    CLEAVE_CHECK(all <= static_cast<int64_t>(option::kClusterRanks.high), Code::kUsage,
                 "tp x pp x dp is ", all, " ranks; at most 1000000 in a dry run");
    o.ranks = static_cast<int>(all);
  }
  if (!flags.is_given("dp")) o.dp = static_cast<int>(std::max<int64_t>(1, o.ranks / inner));
  CLEAVE_CHECK(inner * o.dp == o.ranks, Code::kShape, "--ranks ", o.ranks, " is not tp ", o.tp,
               " x pp ", o.pp, " x dp ", o.dp, "; choose sizes with this product");
  CLEAVE_CHECK(o.rank < o.ranks, Code::kUsage, "--rank ", o.rank, " is not among the ", o.ranks,
               " ranks; choose 0 to ", o.ranks - 1);
  if (!flags.is_given("batch-size")) {
    o.batch_size = (o.batch_size + o.dp - 1) / o.dp * o.dp;
  }
  CLEAVE_CHECK(o.batch_size % o.dp == 0, Code::kShape, "--batch-size ", o.batch_size,
               " is not a multiple of dp ", o.dp, "; a dry run needs equal shares of the batch");
}

/// The flags that restrict the layouts of a cluster; all sizes together give --ranks.
void complete_cluster(PlanOptions& o, const Flags& flags) {
  if (o.cluster.empty() || !o.runs.empty()) return;
  for (const option::Row& row : option::rows(static_cast<LayoutOptions&>(o))) {
    if (flags.is_given(row.name)) o.fixed_flags.emplace_back(row.name);
  }
  const bool has_sizes = flags.is_given("tp") && flags.is_given("pp") && flags.is_given("dp");
  if (o.ranks > 0 || !has_sizes) return;
  const int64_t all = int64_t{o.tp} * o.pp * o.dp;
  CLEAVE_CHECK(all <= static_cast<int64_t>(option::kClusterRanks.high), Code::kUsage,
               "tp x pp x dp is ", all, " ranks; at most 1000000 on a cluster");
  o.ranks = static_cast<int>(all);
}

/// --cluster, --tokens and --runs.
void check_cluster(const PlanOptions& o) {
  if (!o.runs.empty()) require_file("--runs", o.runs);
  if (o.cluster.ends_with(".json")) require_file("--cluster", o.cluster);
  const bool searches = !o.cluster.empty() && o.runs.empty();
  CLEAVE_CHECK(!searches || o.ranks > 0, Code::kUsage, "--cluster ", o.cluster,
               " needs the number of devices; add --ranks N, or --tp, --pp and --dp");
  CLEAVE_CHECK(searches || o.tokens.empty(), Code::kUsage,
               "--tokens needs a cluster; add --cluster NAME");
  CLEAVE_CHECK(searches || o.html.empty(), Code::kUsage,
               "--html writes the page of a cluster's plan; add --cluster NAME");
  CLEAVE_CHECK(o.html.empty() || o.html.ends_with(".html"), Code::kUsage, "--html is ", o.html,
               "; expected a name that ends in .html");
  constexpr int kMostRanks = static_cast<int>(option::kRanks.high);
  CLEAVE_CHECK(searches || o.dry_run || o.ranks <= kMostRanks, Code::kUsage, "--ranks is ", o.ranks,
               "; at most ", kMostRanks, " without --cluster");
}

void check(const PlanOptions& options) {
  check_cluster(options);
  require_model("--model", options.model, /*takes_presets=*/true);
  if (!options.plan.empty()) require_file("--plan", options.plan);
  check_batch(options.batch_size, options.micro_batch_size, options.dp);
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .summary = "forecast memory, communication and time of a layout",
          .usage =
              "[--model] NAME|DIR|JSON [--tp N ... | --ranks N [--cluster NAME] | --runs FILE.csv "
              "| --dry-run] "
              "[flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<PlanOptions>();
            define(flags, *options);
            flags.group("other");
            flags.config();
            return [options, &flags] {
              complete_dry_run(*options, flags);
              complete_cluster(*options, flags);
              check(*options);
              library_function<decltype(cleave_plan)>("cleave_plan")(*options);
              return 0;
            };
          }};
}

}  // namespace cleave::cli
