#include "cleave/checkpoint/diff.h"

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/program.h"
#include "cleave/file/model_path.h"

namespace cleave::cli {
namespace {

using Object = nlohmann::ordered_json;

struct Options {
  std::string a, b;
  bool json = false;
};

// JSON has no infinity.
Object number(double value) {
  return std::isfinite(value) ? Object(value) : Object("infinite");
}

Object as_json(const DiffReport& report) {
  Object rows = Object::array();
  for (const TensorDifference& d : report.differences) {
    Object row = {{"name", d.name}};
    if (d.in_a) row["a"] = {{"dtype", d.dtype_a}, {"shape", d.shape_a}};
    if (d.in_b) row["b"] = {{"dtype", d.dtype_b}, {"shape", d.shape_b}};
    if (d.num_different > 0) {
      row["elements"] = d.num_different;
      row["max_absolute"] = number(d.max_absolute);
      row["max_relative"] = number(d.max_relative);
      row["at"] = d.where;
    }
    rows.push_back(std::move(row));
  }
  return {{"equal", report.differences.empty()},
          {"compared", report.num_tensors},
          {"differences", std::move(rows)},
          {"optimizer_only_in_a", report.num_only_in_a},
          {"optimizer_only_in_b", report.num_only_in_b}};
}

std::string sentence(const TensorDifference& d) {
  if (!d.in_b) return str("only in A: ", d.dtype_a, " ", shape_text(d.shape_a));
  if (!d.in_a) return str("only in B: ", d.dtype_b, " ", shape_text(d.shape_b));
  if (d.shape_a != d.shape_b) {
    return str("shape ", shape_text(d.shape_a), " and ", shape_text(d.shape_b));
  }
  std::string text;
  if (d.dtype_a != d.dtype_b) text = str("dtype ", d.dtype_a, " and ", d.dtype_b);
  if (d.num_different == 0) return text + ", equal values";
  text += str(text.empty() ? "" : ", ", counted(d.num_different, "element"),
              d.num_different == 1 ? " differs by " : " differ by up to ", d.max_absolute,
              " (relative ", d.max_relative, "), most at ", shape_text(d.where));
  return text;
}

void print(const DiffReport& report) {
  for (const TensorDifference& d : report.differences) {
    std::cout << d.name << ": " << sentence(d) << '\n';
  }
  for (const auto& [count, side] :
       {std::pair{report.num_only_in_a, 'A'}, std::pair{report.num_only_in_b, 'B'}}) {
    if (count == 0) continue;
    std::cout << "optimizer state: only in " << side << ", " << counted(count, "tensor")
              << "; only the weights are compared\n";
  }
  const size_t count = report.differences.size();
  std::cout << counted(report.num_tensors, "tensor") << " compared, "
            << (count == 0 ? "all equal" : counted(count, "difference")) << '\n';
}

int run(const Options& options) {
  CLEAVE_CHECK(!options.b.empty(), Code::kUsage, "diff compares two paths; see cleave diff --help");
  for (const auto& [name, side] : {std::pair{"A", options.a}, std::pair{"B", options.b}}) {
    std::error_code problem;
    const bool is_there = std::filesystem::exists(local_model(side, name), problem);
    CLEAVE_CHECK(is_there, Code::kIo, name, ' ', side,
                 ": no such file or folder; give two model or run folders, or tensor files");
    require_checkpoint(side);
  }
  DiffReport report;
  library_function<decltype(cleave_diff)>("cleave_diff")(options.a, options.b, report);
  if (options.json) {
    std::cout << as_json(report).dump() << '\n';
  } else {
    print(report);
  }
  return report.differences.empty() ? 0 : kDifferent;
}

}  // namespace

Command diff_command() {
  return {.name = "diff",
          .summary = "compare two models or checkpoints tensor by tensor",
          .usage = "A B [--json]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<Options>();
            flags.positional(&options->a,
                             {"a", "A",
                              "model or run folder, ORG/NAME of the Hugging Face cache, "
                              "or a tensor file"});
            flags.positional(&options->b, {"b", "B", "the same, to compare with A"});
            flags.add({&options->json, "json", "", "print one JSON object", "off"});
            return [options] { return run(*options); };
          }};
}

}  // namespace cleave::cli
