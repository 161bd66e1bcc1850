#include <algorithm>
#include <type_traits>
#include <variant>

#include "cleave/base/error.h"
#include "cleave/train/fingerprint.h"

namespace cleave::inline train {
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

/// A saved value as option::text_of() writes it.
std::string saved_text(const Json& value) {
  if (!value.is(Json::Type::kBool)) return value.dump();
  return value.as_bool() ? "on" : "off";
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
  TrainOptions defaults;
  const std::vector<Row> rows = compared(options), unset = compared(defaults);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const OnResume& rule = row.on_resume;
    const bool is_switch = std::holds_alternative<bool*>(row.target);
    // A run from before there was this option trained as its default does.
    const std::string before = state.has(key_of(row)) ? saved_text(state.at(key_of(row)))
                                                      : option::text_of(unset[i].target);
    const std::string now = option::text_of(row.target);
    if (before == now) continue;
    const std::string was =
        str("the run in ", options.out, " was started with ",
            is_switch && before == "off" ? "--no-" : "--", row.name, is_switch ? "" : " " + before);
    CLEAVE_CHECK(rule.kind != OnResume::kRefuse, Code::kUsage, was,
                 "; give the same value to resume it");
    warnings.push_back(str(was, is_switch ? "" : ", now " + now, ": ", rule.consequence));
  }
  return warnings;
}

}  // namespace cleave::inline train
