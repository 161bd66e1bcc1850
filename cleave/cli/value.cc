#include "cleave/cli/value.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"

namespace cleave::cli {
namespace {

// "an integer, 1 or more"; "a number above 0 and below 1".
std::string expected(std::string_view kind, const Range& range) {
  const bool has_low = std::isfinite(range.low);
  const bool has_high = std::isfinite(range.high);
  std::string text(kind);
  if (has_low && has_high && range.takes_low && range.takes_high) {
    return text + str(" from ", range.low, " to ", range.high);
  }
  if (has_low)
    text += range.takes_low ? str(", ", range.low, " or more") : str(" above ", range.low);
  if (has_low && has_high) text += " and";
  if (has_high) text += range.takes_high ? str(" up to ", range.high) : str(" below ", range.high);
  return text;
}

bool is_inside(double value, const Range& range) {
  return (range.takes_low ? value >= range.low : value > range.low) &&
         (range.takes_high ? value <= range.high : value < range.high);
}

template <class Number>
void read_number(const Given& given, const Range& range, std::string_view kind, Number* target) {
  Number value{};
  const char* end = given.text.data() + given.text.size();
  const auto [stop, problem] = std::from_chars(given.text.data(), end, value);
  const bool is_number = problem == std::errc() && stop == end && !given.text.empty();
  CLEAVE_CHECK(is_number && std::isfinite(static_cast<double>(value)) &&
                   is_inside(static_cast<double>(value), range),
               Code::kUsage, given.where, " is '", given.text, "'; expected ",
               expected(kind, range));
  *target = value;
}

// The parts between commas, spaces around them left out.
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

}  // namespace

void read_value(const Given& given, const Range& range, int* target) {
  read_number(given, range, "an integer", target);
}

void read_value(const Given& given, const Range& range, int64_t* target) {
  read_number(given, range, "an integer", target);
}

void read_value(const Given& given, const Range& range, uint64_t* target) {
  read_number(given, Range{.low = 0, .high = range.high}, "an integer", target);
}

void read_value(const Given& given, const Range& range, double* target) {
  read_number(given, range, "a number", target);
}

void read_value(const Given& given, const Range& /*range*/, std::string* target) {
  CLEAVE_CHECK(!given.text.empty(), Code::kUsage, given.where, " is empty; leave it out instead");
  *target = given.text;
}

void read_value(const Given& given, const Range& range, std::optional<int64_t>* target) {
  int64_t value = 0;
  read_value(given, range, &value);
  *target = value;
}

void read_choice(const Given& given, const std::vector<std::string>& choices, std::string* target) {
  std::string list;
  for (const std::string& choice : choices) {
    if (choice == given.text) {
      *target = choice;
      return;
    }
    list += (list.empty() ? "" : ", ") + choice;
  }
  throw Error(Code::kUsage, str(given.where, " is '", given.text, "'; expected one of ", list));
}

std::vector<double> read_numbers(const Given& given, const Range& range) {
  std::vector<double> numbers;
  for (const Given& part : between_commas(given)) read_value(part, range, &numbers.emplace_back());
  return numbers;
}

std::vector<int64_t> read_ids(const Given& given) {
  std::vector<int64_t> ids;
  for (const Given& part : between_commas(given)) {
    read_value(part, kNotNegative, &ids.emplace_back());
  }
  return ids;
}

}  // namespace cleave::cli
