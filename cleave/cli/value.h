#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace cleave::cli {

/// Which numbers a flag takes.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool takes_low = true;   ///< `low` itself is allowed
  bool takes_high = true;  ///< `high` itself is allowed
};

/// 1, 2, 3, ...
inline constexpr Range kPositive{.low = 1};
/// 0, 1, 2, ...; every number not below 0
inline constexpr Range kNotNegative{.low = 0};
/// Every number above 0.
inline constexpr Range kAboveZero{.low = 0, .takes_low = false};

/// Where a value comes from and what it is: for parsing and for the message when it is wrong.
struct Given {
  std::string where;  ///< "--steps" or "run.json: \"steps\""
  std::string text;
};

/// Reads `given` into `target`. Throws Error(kUsage): "--steps is 'x'; expected an integer, 1 or
/// more".
void read_value(const Given& given, const Range& range, int* target);
void read_value(const Given& given, const Range& range, int64_t* target);
void read_value(const Given& given, const Range& range, uint64_t* target);
void read_value(const Given& given, const Range& range, double* target);
void read_value(const Given& given, const Range& range, std::string* target);
void read_value(const Given& given, const Range& range, std::optional<int64_t>* target);

/// One of `choices`, else Error(kUsage) that lists them.
void read_choice(const Given& given, const std::vector<std::string>& choices, std::string* target);

/// Numbers between commas: "0.9,0.95"; at least one.
std::vector<double> read_numbers(const Given& given, const Range& range);
/// Ids between commas: "1,2,3", each 0 or more; at least one.
std::vector<int64_t> read_ids(const Given& given);

}  // namespace cleave::cli
