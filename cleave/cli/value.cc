#include "cleave/cli/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/cli/synonyms.h"

namespace cleave::cli {
namespace {

// A value to read and its origin, which an error message names.
struct Given {
  std::string where;  // "--steps" or "run.json: \"steps\""
  std::string text;
};

// Large integers are written with all digits, not with an exponent.
std::string shown(double bound) {
  std::array<char, 32> digits{};
  const double size = std::abs(bound);
  const bool is_whole = bound == std::floor(bound) && size >= 1e6 && size < 1e16;
  if (!is_whole) return str(bound);
  const auto [end, problem] =
      std::to_chars(digits.data(), digits.data() + digits.size(), bound, std::chars_format::fixed);
  return {digits.data(), end};
}

// "an integer from 1 to 256"; "a number above 0 and below 1".
std::string expected(std::string_view kind, const option::Limits& limits) {
  const std::string low = shown(limits.low);
  const std::string high =
      limits.high == option::kSeeds.high ? str(UINT64_MAX) : shown(limits.high);
  if (limits.takes_low && limits.takes_high) return str(kind, " from ", low, " to ", high);
  return str(kind, limits.takes_low ? " from " : " above ", low,
             limits.takes_high ? " and up to " : " and below ", high);
}

bool is_inside(double value, const option::Limits& limits) {
  return (limits.takes_low ? value >= limits.low : value > limits.low) &&
         (limits.takes_high ? value <= limits.high : value < limits.high);
}

template <class Number>
void read_number(const Given& given, const option::Limits& limits, Number* target) {
  constexpr bool kIsWhole = std::is_integral_v<Number>;
  Number value{};
  const char* end = given.text.data() + given.text.size();
  const auto [stop, problem] = std::from_chars(given.text.data(), end, value);
  const bool is_number = problem == std::errc() && stop == end && !given.text.empty();
  CLEAVE_CHECK(is_number && std::isfinite(static_cast<double>(value)) &&
                   is_inside(static_cast<double>(value), limits),
               Code::kUsage, given.where, " is '", given.text, "'; expected ",
               expected(kIsWhole ? "an integer" : "a number", limits));
  *target = value;
}

// The comma-separated parts, without surrounding spaces.
std::vector<Given> between_commas(const Given& given) {
  std::vector<Given> parts;
  for (size_t at = 0; at <= given.text.size();) {
    const size_t comma = std::min(given.text.find(',', at), given.text.size());
    std::string_view part = std::string_view(given.text).substr(at, comma - at);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.push_back({given.where, std::string(part)});
    at = comma + 1;
  }
  return parts;
}

const std::string& read_choice(const Given& given, const option::Choices& choices) {
  std::string list;
  for (const std::string& choice : choices) {
    if (choice == given.text) return choice;
    list += (list.empty() ? "" : ", ") + choice;
  }
  throw Error(Code::kUsage, str(given.where, " is '", given.text, "'; expected one of ", list));
}

// Reads the values of a row into a variable of each type.
struct Reader {
  const std::string& from;
  const std::vector<std::string>& values;
  const option::Row& row;

  [[nodiscard]] Given last() const { return {from, values.back()}; }
  [[nodiscard]] const option::Limits& limits() const {
    return std::get<option::Limits>(row.values);
  }

  void refuse_empty(const std::string& value) const {
    const bool is_required = row.default_text == "required";
    CLEAVE_CHECK(!value.empty(), Code::kUsage, from, " is empty; ",
                 is_required ? "expected " + row.value : "leave it out instead");
  }

  void operator()(bool* target) const { *target = values.back() == "true"; }
  template <class Number>
  void operator()(Number* target) const {
    read_number(last(), limits(), target);
  }
  template <class Number>
  void operator()(std::optional<Number>* target) const {
    read_number(last(), limits(), &target->emplace());
  }
  void operator()(std::array<double, 2>* target) const {
    std::vector<double> numbers;
    for (const Given& part : between_commas(last())) {
      read_number(part, limits(), &numbers.emplace_back());
    }
    CLEAVE_CHECK(numbers.size() == 2, Code::kUsage, from, " is '", values.back(),
                 "'; expected two numbers, as in ", option::text_of(target));
    *target = {numbers[0], numbers[1]};
  }
  void operator()(std::string* target) const {
    if (const auto* choices = std::get_if<option::Choices>(&row.values)) {
      *target = read_choice(last(), *choices);
      return;
    }
    refuse_empty(values.back());
    *target = values.back();
  }
  void operator()(std::vector<std::string>* target) const {
    const bool is_free_text = std::holds_alternative<option::Each>(row.values);
    if (!is_free_text)
      std::ranges::for_each(values, [&](const auto& value) { refuse_empty(value); });
    *target = values;
  }
  void operator()(std::vector<std::vector<int64_t>>* target) const {
    target->clear();
    for (const std::string& value : values) {
      std::vector<int64_t>& ids = target->emplace_back();
      for (const Given& part : between_commas({from, value})) {
        read_number(part, limits(), &ids.emplace_back());
      }
    }
  }
};

}  // namespace

Arity arity_of(const option::Row& row) {
  if (std::holds_alternative<bool*>(row.target)) return Arity::kSwitch;
  if (std::holds_alternative<std::vector<std::vector<int64_t>>*>(row.target)) return Arity::kRows;
  if (!std::holds_alternative<std::vector<std::string>*>(row.target)) return Arity::kOne;
  return std::holds_alternative<option::Each>(row.values) ? Arity::kEach : Arity::kMany;
}

void read_values(const std::string& from, const std::vector<std::string>& values,
                 const option::Row& row) {
  const std::string_view meant = values.empty() ? "" : meant_value(row, values.back());
  CLEAVE_CHECK(meant.empty(), Code::kUsage, from, " is '", values.back(), "'; did you mean ",
               meant);
  std::visit(Reader{from, values, row}, row.target);
}

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
