#include "cleave/cli/value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"

namespace cleave::cli {
namespace {

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
std::string expected(std::string_view kind, const Range& range) {
  const std::string low = shown(range.low);
  const std::string high = range.high == kSeeds.high ? str(UINT64_MAX) : shown(range.high);
  if (range.takes_low && range.takes_high) return str(kind, " from ", low, " to ", high);
  return str(kind, range.takes_low ? " from " : " above ", low,
             range.takes_high ? " and up to " : " and below ", high);
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

}  // namespace

void read_value(const Given& given, const Range& range, int* target) {
  read_number(given, range, "an integer", target);
}

void read_value(const Given& given, const Range& range, int64_t* target) {
  read_number(given, range, "an integer", target);
}

void read_value(const Given& given, const Range& range, uint64_t* target) {
  read_number(given, range, "an integer", target);
}

void read_value(const Given& given, const Range& range, double* target) {
  read_number(given, range, "a number", target);
}

void read_value(const Given& given, std::string* target) {
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
    read_value(part, kTokens, &ids.emplace_back());
  }
  return ids;
}

}  // namespace cleave::cli
