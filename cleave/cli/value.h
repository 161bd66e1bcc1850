#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::cli {

/// Numbers that a flag accepts. Every flag has both limits: a value beyond them is a mistake that
/// would exhaust memory or never finish.
struct Range {  // NOLINT(cppcoreguidelines-pro-type-member-init): both ends must be given
  double low;
  double high;
  bool takes_low = true;   ///< `low` itself is allowed
  bool takes_high = true;  ///< `high` itself is allowed
};

/// Ranks along one axis of a layout, and in total.
inline constexpr Range kRanks{.low = 1, .high = 4096};
/// Ranks that one command starts on this host.
inline constexpr Range kHostRanks{.low = 1, .high = 256};
/// Threads of a rank.
inline constexpr Range kThreads{.low = 1, .high = 1024};
/// Sequences of a batch.
inline constexpr Range kSequences{.low = 1, .high = 1e6};
/// Length of a sequence, in tokens.
inline constexpr Range kLength{.low = 1, .high = 1e7};
/// Steps, and steps between two events; 0 is "none".
inline constexpr Range kSteps{.low = 0, .high = 1e9};
/// Token ids and token counts: a vocabulary has fewer than 2^31.
inline constexpr Range kTokens{.low = 0, .high = 2147483647};
/// Seconds to wait.
inline constexpr Range kSeconds{.low = 0.001, .high = 1e7};
/// Seeds: any unsigned 64-bit integer.
inline constexpr Range kSeeds{.low = 0, .high = 18446744073709551615.0};

/// A value to parse and its origin, which an error message names.
struct Given {
  std::string where;  ///< "--steps" or "run.json: \"steps\""
  std::string text;
};

/// Reads `given` into `target`. Throws Error(kUsage): "--tp is 'x'; expected an integer from 1 to
/// 4096".
void read_value(const Given& given, const Range& range, int* target);
void read_value(const Given& given, const Range& range, int64_t* target);
void read_value(const Given& given, const Range& range, uint64_t* target);
void read_value(const Given& given, const Range& range, double* target);
void read_value(const Given& given, std::string* target);
void read_value(const Given& given, const Range& range, std::optional<int64_t>* target);

/// Reads one of `choices`; otherwise throws Error(kUsage), which lists them.
void read_choice(const Given& given, const std::vector<std::string>& choices, std::string* target);

/// Comma-separated numbers: "0.9,0.95"; at least one.
std::vector<double> read_numbers(const Given& given, const Range& range);
/// Comma-separated token ids: "1,2,3"; at least one.
std::vector<int64_t> read_ids(const Given& given);

}  // namespace cleave::cli
