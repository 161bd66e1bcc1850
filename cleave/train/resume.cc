#include "cleave/train/resume.h"

#include <algorithm>
#include <type_traits>

#include "cleave/base/error.h"

namespace cleave {
namespace {

using option::OnResume;
using option::Row;

/// The key of an option in a checkpoint's state.
std::string key_of(const Row& row) {
  std::string key = row.text.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

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

/// Calls `use` with the variable of a saved option.
template <class Use>
void visit_saved(const Row& row, const Use& use) {
  std::visit(
      [&](auto* target) {
        if constexpr (std::is_integral_v<std::remove_pointer_t<decltype(target)>>) {
          use(target);
        } else {
          CLEAVE_BUG("--", row.text.name, " is no integer or switch; it cannot be saved");
        }
      },
      row.target);
}

void read(const Json& value, bool* target) {
  *target = value.as_bool();
}

template <class Number>
void read(const Json& value, Number* target) {
  *target = static_cast<Number>(value.as_int());
}

/// "--seed 7"; "--no-shuffle".
std::string flag_of(const Row& row) {
  const std::string value = option::text_of(row.target);
  if (!std::holds_alternative<bool*>(row.target)) return str("--", row.text.name, ' ', value);
  return (value == "on" ? "--" : "--no-") + row.text.name;
}

}  // namespace

void save_options(nlohmann::ordered_json& state, TrainOptions options) {
  for (const Row& row : compared(options)) {
    visit_saved(row, [&](const auto* target) {
      using Value = std::remove_cvref_t<decltype(*target)>;
      if constexpr (std::is_same_v<Value, uint64_t>) {
        state[key_of(row)] = static_cast<int64_t>(*target);  // JSON readers take int64
      } else {
        state[key_of(row)] = *target;
      }
    });
  }
}

std::vector<std::string> check_resumed(const Json& state, TrainOptions options) {
  std::vector<std::string> warnings;
  TrainOptions saved = options;
  const std::vector<Row> now = compared(options), before = compared(saved);
  for (size_t i = 0; i < now.size(); ++i) {
    const OnResume& rule = now[i].on_resume;
    const std::string key = key_of(now[i]);
    if (rule.kind == OnResume::kWarn && !state.has(key)) continue;
    visit_saved(before[i], [&](auto* target) { read(state.at(key), target); });
    const std::string value = option::text_of(now[i].target);
    if (value == option::text_of(before[i].target)) continue;
    const std::string was =
        str("the run in ", options.out, " was started with ", flag_of(before[i]));
    CLEAVE_CHECK(rule.kind != OnResume::kRefuse, Code::kUsage, was,
                 "; give the same value to resume it");
    const bool is_switch = std::holds_alternative<bool*>(now[i].target);
    warnings.push_back(str(was, is_switch ? "" : ", now " + value, ": ", rule.consequence));
  }
  return warnings;
}

}  // namespace cleave
