#include "cleave/train/resume.h"

#include <algorithm>
#include <type_traits>

#include "cleave/base/error.h"

namespace cleave {
namespace {

using option::OnResume;
using option::Row;

/// The options that are saved.
std::vector<Row> compared(TrainOptions& options) {
  std::vector<Row> found;
  for (const option::Section& section : option::sections(options)) {
    for (const Row& row : section.rows) {
      if (row.on_resume.kind != OnResume::kIgnore) found.push_back(row);
    }
  }
  return found;
}

/// The key of an option in a checkpoint's state.
std::string key_of(const Row& row) {
  std::string key = row.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

}  // namespace

void save_options(nlohmann::ordered_json& state, TrainOptions options) {
  for (const Row& row : compared(options)) {
    std::visit(
        [&](const auto* value) {
          if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(*value)>>) {
            state[key_of(row)] = *value;
          } else {
            CLEAVE_BUG("--", row.name, " is no integer or switch; it cannot be saved");
          }
        },
        row.target);
  }
}

std::vector<std::string> check_resumed(const Json& state, TrainOptions options) {
  std::vector<std::string> warnings;
  for (const Row& row : compared(options)) {
    const OnResume& rule = row.on_resume;
    if (rule.kind == OnResume::kWarn && !state.has(key_of(row))) continue;
    const Json saved = state.at(key_of(row));
    const bool is_switch = saved.is(Json::Type::kBool);
    const bool was_on = is_switch && saved.as_bool();
    const std::string before = is_switch ? (was_on ? "on" : "off") : saved.dump();
    const std::string now = option::text_of(row.target);
    if (before == now) continue;
    const std::string was =
        str("the run in ", options.out, " was started with ", is_switch && !was_on ? "--no-" : "--",
            row.name, is_switch ? "" : " " + before);
    CLEAVE_CHECK(rule.kind != OnResume::kRefuse, Code::kUsage, was,
                 "; give the same value to resume it");
    warnings.push_back(str(was, is_switch ? "" : ", now " + now, ": ", rule.consequence));
  }
  return warnings;
}

}  // namespace cleave
