#include "cleave/cli/config.h"

#include <algorithm>

namespace cleave::cli {
namespace {

std::string scalar(const Json& value) {
  switch (value.type()) {
    case Json::Type::kString:
      return value.as_string();
    case Json::Type::kNumber:
    case Json::Type::kBool:
      return value.dump();
    default:
      value.fail("expected a number or a string");
  }
}

std::string between_commas(const Json& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ",") + scalar(list.at(i));
  return text;
}

bool is_list(const Json& value) {
  return value.is(Json::Type::kArray);
}

}  // namespace

std::vector<ConfigEntry> read_config_entries(const std::string& path) {
  const Json root =
      parsed_as("a config file is a JSON object of flags", [&] { return Json::parse_file(path); });
  if (!root.is(Json::Type::kObject)) root.fail("expected an object of flags");
  std::vector<ConfigEntry> entries;
  for (size_t i = 0; i < root.size(); ++i) {
    Json value = root.at(i);
    if (value.is(Json::Type::kNull)) continue;
    std::string name = root.key(i);
    std::replace(name.begin(), name.end(), '_', '-');
    if (name.starts_with("--")) name = name.substr(2);
    entries.push_back({root.key(i), std::move(name), std::move(value)});
  }
  return entries;
}

std::vector<std::string> config_values(const ConfigEntry& entry, Arity arity, bool is_opposite) {
  const Json& value = entry.value;
  if (arity == Arity::kSwitch) return {value.as_bool() != is_opposite ? "true" : "false"};
  if (!is_list(value)) return {scalar(value)};
  if (arity == Arity::kOne) return {between_commas(value)};
  if (value.size() == 0) value.fail("expected at least one element");
  if (arity == Arity::kRows && !is_list(value.at(0))) return {between_commas(value)};
  std::vector<std::string> values;
  for (size_t i = 0; i < value.size(); ++i) {
    const Json element = value.at(i);
    values.push_back(arity == Arity::kRows ? between_commas(element) : scalar(element));
  }
  return values;
}

}  // namespace cleave::cli
