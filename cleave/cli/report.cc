#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/cli/command.h"
#include "cleave/report/page.h"

namespace cleave::cli {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out;
};

int run(Options options) {
  const std::vector<std::string>& runs = options.runs;
  CLEAVE_CHECK(!runs.empty(), Code::kUsage, "no RUN given; see cleave report --help");
  if (options.out.empty()) {
    options.out = runs.size() == 1 ? (std::filesystem::path(runs[0]) / kPageName).string()
                                   : "comparison.html";
  }
  CLEAVE_CHECK(options.out.ends_with(".html"), Code::kUsage, "--out is ", options.out,
               "; expected a name that ends in .html");
  write_report(runs, options.out);
  std::cout << "report: " << options.out << '\n';
  return 0;
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .summary = "write the report of a run, or compare several runs in one page",
          .usage = "RUN [RUN...] [--out FILE.html]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<Options>();
            flags.positional(&options->runs,
                             {"run", "RUN", "run folder of cleave train; it may be in progress"});
            flags.add({&options->out, "out", "FILE.html",
                       "page to write; for several runs comparison.html", "RUN/report.html"});
            return [options] { return run(*options); };
          }};
}

}  // namespace cleave::cli
